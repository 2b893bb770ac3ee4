"""The matrix products of a linear layer y = x W^T + bias, its bias and the bias's gradient, of MindSpore operators."""

from functools import partial

from mindspore import Tensor, ops

from pynative import in_place
from pynative.autograd import Function, add_weight_gradient
from pynative.kernels.ops.elementwise import cast, shaped

# The transpose flags avoid the copies that transposing a tensor first would make.
_product = ops.MatMul()
_product_with_transposed = ops.MatMul(transpose_b=True)
_transposed_product = ops.MatMul(transpose_a=True)


def _rows(x: Tensor) -> Tensor:
    return x if len(x.shape) == 2 else x.reshape(-1, x.shape[-1])


def delivered(gradient: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """`out` holding the gradient, or with it added; without `out` the gradient itself."""
    if out is None:
        return gradient
    (in_place.assign_add if accumulate else in_place.assign)(out, gradient)
    return out


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _product_with_transposed(_rows(x), weight)
    if bias is not None:
        y = ops.add(y, bias)
    return shaped(y, *x.shape[:-1], weight.shape[0])


def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    return shaped(_product(_rows(dy), weight), *dy.shape[:-1], weight.shape[1])


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    return delivered(_transposed_product(_rows(dy), _rows(x)), out, accumulate)


def bias_gradient(dy: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    return delivered(_rows(dy).sum(axis=0), out, accumulate)


class _AddBias(Function):
    """The tape's own backward would sum and leave the gradient in `_grad`, from where it would be moved."""

    @staticmethod
    def forward(ctx, x, bias):
        ctx.bias, ctx.dtype = bias, x.dtype
        return ops.add(x, bias)

    @staticmethod
    def backward(ctx, dy):
        return cast(dy, ctx.dtype), add_weight_gradient(ctx.bias, partial(bias_gradient, dy))


def biased(x: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., o] + bias [o], recorded; x itself without one."""
    return x if bias is None else _AddBias.apply(x, bias)
