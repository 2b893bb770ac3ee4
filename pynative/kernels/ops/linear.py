"""The matrix products of a linear layer y = x W^T + bias, its bias and the bias's gradient, of MindSpore operators."""

from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import shaped, widened_on_cpu
from pynative.memory import in_place

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


@widened_on_cpu("x")
def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _product_with_transposed(_rows(x), weight)
    if bias is not None:
        y = ops.add(y, bias)
    return shaped(y, *x.shape[:-1], weight.shape[0])


@widened_on_cpu("dy")
def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    return shaped(_product(_rows(dy), weight), *dy.shape[:-1], weight.shape[1])


@widened_on_cpu("dy")
def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    return delivered(_transposed_product(_rows(dy), _rows(x)), out, accumulate)


@widened_on_cpu("dy")
def bias_gradient(dy: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    return delivered(_rows(dy).sum(axis=0), out, accumulate)
