"""The matrix products of a linear layer y = x W^T + bias, its bias's gradient, and the rounding of a weight to MXFP4,
of MindSpore operators."""

from mindspore import Tensor, ops

from parallel_core.numerics.block_formats import MXFP4_BLOCK
from pynative.kernels.ops.elementwise import FLOAT32, cast, shaped, widened_on_cpu
from pynative.memory import in_place

# The transpose flags avoid the copies that transposing a tensor first would make.
_product = ops.MatMul()
_product_with_transposed = ops.MatMul(transpose_b=True)
_transposed_product = ops.MatMul(transpose_a=True)


def _rows(x: Tensor) -> Tensor:
    return x if len(x.shape) == 2 else x.reshape(-1, x.shape[-1])


def delivered(gradient: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """`out` with the gradient written into it or, if `accumulate`, added to it; the gradient itself if out is None."""
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


def mxfp4(weight: Tensor, axis: int) -> Tensor:
    rows = cast(weight if axis else weight.T, FLOAT32)
    missing = -rows.shape[1] % MXFP4_BLOCK
    filled = ops.pad(rows, (0, missing)) if missing else rows
    blocks = filled.reshape(rows.shape[0], -1, MXFP4_BLOCK)
    scale = _power_of_two_below(blocks.abs().max(axis=-1, keepdims=True)) / 4
    scaled = blocks / scale
    magnitude = scaled.abs()
    step = ops.maximum(_power_of_two_below(magnitude), 1.0) / 2
    rounded = ops.minimum(ops.floor(magnitude / step + 0.5) * step, 6.0)
    result = (ops.sign(scaled) * rounded * scale).reshape(*filled.shape)[:, : rows.shape[1]]
    return cast(result if axis else result.T, weight.dtype)


def _power_of_two_below(x: Tensor) -> Tensor:
    """The largest power of two that is at most x: that of the rounded logarithm, halved or doubled where it is off."""
    power = ops.pow(2.0, ops.clamp(ops.floor(ops.log2(ops.maximum(x, 1e-37))), -125, 127))
    return ops.where(power > x, power / 2, ops.where(power * 2 <= x, power * 2, power))
