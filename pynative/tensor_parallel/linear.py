"""The product of a linear layer, y = x W^T + bias, over a tensor-parallel region, and with a low-rank adapter beside
it.

s sequence, b batch, i input size, o output size, r rank of the adapter.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from zlib import crc32

from mindspore import Parameter, Tensor, nn

from parallel_core.blocks import Adapter, Linear
from pynative import kernels
from pynative.parameter import place_of
from pynative.tape.autograd import Function, add_weight_gradient
from pynative.tensor_parallel.made_again import made_again
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.products import PLAIN, Products
from pynative.tensor_parallel.random import get_rng_tracer

Drop = Callable[[Tensor], Tensor]
"""A function that applies one dropout mask, to an input of the adapter or to its gradient."""


class LinearWithGradAccumulationAndAsyncCommunication(Function):
    """y = x W^T + bias for an x that enters a tensor-parallel region. If the weight is trained, x is kept as it lies
    outside, unless it can be made again (`made_again`).

    If the weight is trained, the backward computes dx while x enters again, and the weight's gradient while dx leaves
    (Korthikanti et al., 2022). Gradients of weight and bias go where `add_weight_gradient` puts them.
    """

    def forward(ctx: Any, x: Any, weight: Any, bias: Any, boundary: Any, products: Any) -> Any:
        is_needed = ctx.inputs_need_gradients[1]
        ctx.boundary, ctx.bias, ctx.products = boundary, bias, products
        ctx.made_again = made_again(x) if is_needed else None
        ctx.save_for_backward(weight, *((x,) if is_needed and not ctx.made_again else ()))
        return products.forward(boundary.enter(x, boundary.group), weight, bias)

    def backward(ctx: Any, dy: Any) -> Any:
        weight, *kept = ctx.saved_tensors
        boundary, products, (needs_dx, needs_dw, needs_db, *_) = ctx.boundary, ctx.products, ctx.inputs_need_gradients
        x = (kept[0] if kept else ctx.made_again()) if needs_dw else None
        entering = boundary.enter(x, boundary.group, async_op=True) if needs_dw else None
        dx = products.input_gradient(dy, weight) if needs_dx else None
        whole_x = entering.wait() if entering else None
        leaving = boundary.leave(dx, boundary.group, async_op=True) if needs_dx else None
        dw = add_weight_gradient(weight, partial(products.weight_gradient, dy, whole_x)) if needs_dw else None
        db = None
        if ctx.bias is not None and needs_db:
            db = add_weight_gradient(ctx.bias, partial(kernels.bias_gradient, dy))
        return leaving.wait() if leaving else None, dw, db, None, None


def linear_with_grad_accumulation_and_async_allreduce(
    x: Tensor, weight: Tensor, bias: Tensor | None, boundary: Boundary, products: Products = PLAIN
) -> Tensor:
    """x W^T + bias, which stays inside the region (last axis o), from x as it lies outside of `boundary` (last axis i),
    weight [o, i] and bias [o] or None. products: the three products as they are to be computed, such as with operands
    rounded to 8 bits."""
    return LinearWithGradAccumulationAndAsyncCommunication.apply(x, weight, bias, boundary, products)


class _AdaptedLinear(Function):
    """y = x W^T + bias + scale (drop(x) A^T) B^T, all of it inside the region, so that W's messages are the adapter's
    too.

    Kept are x as it lies outside, and the [..., r] between A and B.
    """

    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, a: Any, b: Any, boundary: Any, scale: Any, drop: Any, products: Any
    ) -> Any:
        ctx.boundary, ctx.scale, ctx.drop, ctx.bias, ctx.made_again = boundary, scale, drop, bias, made_again(x)
        ctx.products = products
        whole = boundary.enter(x, boundary.group)
        narrow = kernels.scale(kernels.linear_forward(drop(whole), kernels.cast(a, x.dtype)), scale)
        ctx.save_for_backward(weight, a, b, narrow, *(() if ctx.made_again else (x,)))
        y = products.forward(whole, weight, bias)
        return _sum(y, kernels.linear_forward(narrow, kernels.cast(b, x.dtype)))

    def backward(ctx: Any, dy: Any) -> Any:
        weight, a, b, narrow, *kept = ctx.saved_tensors
        boundary, (needs_dx, needs_dw, needs_db, *_) = ctx.boundary, ctx.inputs_need_gradients
        entering = boundary.enter(kept[0] if kept else ctx.made_again(), boundary.group, async_op=True)
        of_narrow = kernels.scale(kernels.linear_input_gradient(dy, kernels.cast(b, dy.dtype)), ctx.scale)
        dx = None
        if needs_dx:
            dx = ctx.products.input_gradient(dy, weight)
            dx = _sum(dx, ctx.drop(kernels.linear_input_gradient(of_narrow, kernels.cast(a, dy.dtype))))
        x = entering.wait()
        leaving = boundary.leave(dx, boundary.group, async_op=True) if needs_dx else None
        dw = add_weight_gradient(weight, partial(ctx.products.weight_gradient, dy, x)) if needs_dw else None
        has_db = ctx.bias is not None and needs_db
        db = add_weight_gradient(ctx.bias, partial(kernels.bias_gradient, dy)) if has_db else None
        da = add_weight_gradient(a, partial(kernels.linear_weight_gradient, of_narrow, ctx.drop(x)))
        of_b = add_weight_gradient(b, partial(kernels.linear_weight_gradient, dy, narrow))
        return leaving.wait() if leaving else None, dw, db, da, of_b, None, None, None, None


class AdapterOfLinear(nn.Cell):
    """The low-rank adapter of a linear, as the linear's cell `adapter`, so that the linear's own parameter names
    stay."""

    def __init__(self, block: Adapter, lora_a: Parameter, lora_b: Parameter) -> None:
        super().__init__()
        self.lora_a, self.lora_b = lora_a, lora_b
        self.input_size, self.scale, self.dropout = block.input_size, block.scale, block.dropout

    @classmethod
    def of(cls, linear: Linear, parameters: Mapping[str, Parameter]) -> "AdapterOfLinear | None":
        """The adapter of a linear, with its parameters "adapter.lora_a" and "adapter.lora_b"; None if the linear has
        none."""
        if linear.adapter is None:
            return None
        return cls(linear.adapter, parameters["adapter.lora_a"], parameters["adapter.lora_b"])

    def construct(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, boundary: Boundary, within: Boundary, products: Products
    ) -> Tensor:
        """x as it lies outside of `boundary` (last axis i) -> the linear's product inside of it (last axis o), with the
        adapter's added. within: the boundary that gives the positions of x inside, for dropout in training."""
        drop = self._drop(within) if self.training and self.dropout else _keep
        return _AdaptedLinear.apply(x, weight, bias, self.lora_a, self.lora_b, boundary, self.scale, drop, products)

    def _drop(self, within: Boundary) -> Drop:
        """A function that applies this micro-batch's dropout mask to the adapter's input, or to its gradient. A rank
        with some of the input's features applies that part of the whole mask."""
        key = get_rng_tracer().key(crc32(self.lora_a.meta.spec.name.encode()), 0)
        own = [range(box.start[1], box.start[1] + box.shape[1]) for box in place_of(self.lora_a).boxes]

        def drop(x: Tensor) -> Tensor:
            rows = within.positions(x.shape[0])
            if x.shape[-1] == self.input_size:
                return kernels.dropout(x, self.dropout, key, rows)
            whole = kernels.place_columns(x, own, self.input_size)
            return kernels.take_columns(kernels.dropout(whole, self.dropout, key, rows), own)

        return drop


def _keep(x: Tensor) -> Tensor:
    return x


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return kernels.bias_dropout_add(y, None, x)
