"""A linear whose features are in groups, each with its own rows of the weight, inside a tensor-parallel region.

T tokens, G groups of this rank, i input and o output features of each group.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tape.autograd import Function, add_weight_gradient
from pynative.tensor_parallel.linear import AdapterOfLinear, linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import Boundary


def _turned(rows: int, columns: int) -> Array:
    """The places in a flat matrix [rows, columns] of its transpose's entries: row-major indices, column by column,
    int32 [rows x columns]."""
    return np.arange(rows * columns, dtype=np.int32).reshape(rows, columns).T.reshape(-1)


class _Grouped(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, groups: int) -> Any:
        ctx.groups, ctx.weight, tokens = groups, weight, x.shape[0]
        by_group = _by_group(x, groups)
        ctx.save_for_backward(*((by_group,) if ctx.inputs_need_gradients[1] else ()))
        y = kernels.grouped_linear_forward(by_group, _parts(weight, x, groups), [tokens] * groups)
        return _by_token(y, groups)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        groups, weight, counts = ctx.groups, ctx.weight, [dy.shape[0]] * ctx.groups
        by_group = _by_group(dy, groups)
        dx = kernels.grouped_linear_input_gradient(by_group, _parts(weight, dy, groups), counts)
        dw = None
        if ctx.inputs_need_gradients[1]:
            (x,) = ctx.saved_tensors
            dw = add_weight_gradient(weight, partial(_weight_gradient, by_group, x, groups))
        return _by_token(dx, groups), dw, None


def _weight_gradient(dy: Tensor, x: Tensor, groups: int, out: Tensor | None, accumulate: bool) -> Tensor:
    counts, outs = [dy.shape[0] // groups] * groups, [None] * groups
    parts: Sequence[Tensor] = kernels.grouped_linear_weight_gradient(dy, x, counts, outs, [False] * groups)
    whole = kernels.join_rows(parts)
    if out is None:
        return whole
    if not accumulate:
        kernels.fill_(out, 0.0)
    kernels.add_(out, kernels.cast(whole, out.dtype))
    return out


def _parts(weight: Tensor, like: Tensor, groups: int) -> Sequence[Tensor]:
    return kernels.split_rows(kernels.cast(weight, like.dtype), [weight.shape[0] // groups] * groups)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """[T, G i] -> [G T, i]: one group's rows after the other's."""
    tokens, width = x.shape[0], x.shape[1] // groups
    return kernels.gather_rows(x.reshape(tokens * groups, width), _turned(tokens, groups), (width,))


def _by_token(x: Tensor, groups: int) -> Tensor:
    """[G T, o] -> [T, G o]: the reverse of `_by_group`."""
    tokens, width = x.shape[0] // groups, x.shape[1]
    return kernels.gather_rows(x, _turned(groups, tokens), (width,)).reshape(tokens, groups * width)


class GroupedLinear(nn.Cell):
    """x [s, b, G i] -> [s, b, G o]: each of this rank's G groups of features times the transpose of the group's own
    weight [o, i], without a bias, plus the product of a low-rank adapter if the block has one."""

    def __init__(self, config: ModelConfig, block: blocks.GroupedLinear) -> None:
        super().__init__()
        self.width, self.rank = block.input_size, block.output_size // block.groups
        parameters = {name: make_parameter(*spec) for name, spec in block.parameters().items()}
        self.weight, self.adapter = parameters["weight"], AdapterOfLinear.of(block, parameters)
        self.region = Boundary.of(config).inside()

    def construct(self, x: Tensor) -> Tensor:
        """x [s, b, G i] -> [s, b, G o], with the adapter's product added if there is one."""
        lead, groups = x.shape[:-1], self.weight.shape[0] // self.rank
        tokens = lead[0] * lead[1]
        if self.adapter is None:
            y: Tensor = _Grouped.apply(x.reshape(tokens, -1), self.weight, groups)
        else:
            x, beside = kernels.fork(x)
            y = _Grouped.apply(x.reshape(tokens, -1), self.weight, groups)
            y = kernels.bias_dropout_add(self._added(self.adapter, beside, groups), None, y)
        return y.reshape(*lead, y.shape[-1])

    def _added(self, adapter: AdapterOfLinear, x: Tensor, groups: int) -> Tensor:
        """The low-rank adapter's product, [T, G o], of x [s, b, G i]; all groups share its first matrix."""
        rows = x.reshape(-1, groups, self.width)
        narrow = linear_with_grad_accumulation_and_async_allreduce(rows, adapter.lora_a, None, self.region)
        narrow = kernels.scale(narrow, adapter.scale).reshape(len(rows), -1)
        added: Tensor = _Grouped.apply(narrow, adapter.lora_b, groups)
        return added
