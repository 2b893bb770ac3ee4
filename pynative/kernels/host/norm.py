"""Layer norm and RMS norm over the last axis, one sweep each way, on the host.

Saved for backward: the input and two numbers a row, one for RMS norm.
"""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import row_blocks, run
from pynative.memory.arrays import array_of
from pynative.tape.autograd import Function

Statistics = tuple[Array, Array | None]
"""Of each row 1/deviation [r] and, for layer norm, its mean [r]."""


def _scale(weight: Tensor, zero_centered: bool) -> Array:
    values = as_float32(weight)
    return values + np.float32(1) if zero_centered else values


def _part(array: Array | None, start: int, stop: int) -> Array | None:
    return None if array is None else array[start:stop]


def _forward(x: Array, scale: Array, shift: Array | None, epsilon: float, y: Array, statistics: Statistics) -> None:
    inverse, mean = statistics

    def block(start: int, stop: int) -> None:
        span = slice(start, stop)
        ENGINE.norm(x[span], scale, shift, epsilon, y[span], _part(mean, start, stop), inverse[span])

    run(block, row_blocks(len(x), x.shape[1] * 4))


def _backward(dy: Array, x: Array, scale: Array, statistics: Statistics, dx: Array) -> tuple[Array, Array]:
    """Fill dx; return the gradients of scale and, for layer norm, shift."""
    blocks, (inverse, mean) = row_blocks(len(x), x.shape[1] * 4), statistics
    scale_sums, shift_sums = np.zeros((2, len(blocks), x.shape[1]), np.float32)

    def block(index: int, start: int, stop: int) -> None:
        span, shift_sum = slice(start, stop), None if mean is None else shift_sums[index]
        ENGINE.norm_gradient(
            dy[span], x[span], scale, _part(mean, start, stop), inverse[span], dx[span], scale_sums[index], shift_sum
        )

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    return scale_sums.sum(axis=0), shift_sums.sum(axis=0)


class _NormFunction(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, zero_centered: bool
    ) -> Tensor:
        ctx.parameters, ctx.zero_centered = (weight, bias), zero_centered
        shift, rows = None if bias is None else as_float32(bias), rows_of(x)
        y, inverse = np.empty(rows.shape, rows.dtype), np.empty(len(rows), np.float32)
        mean = None if bias is None else np.empty(len(rows), np.float32)
        _forward(rows, _scale(weight, zero_centered), shift, epsilon, y, (inverse, mean))
        statistics = (inverse,) if mean is None else (inverse, mean)
        ctx.save_for_backward(x, *map(from_numpy, statistics))
        return from_numpy(y.reshape(x.shape))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse, *mean = ctx.saved_tensors
        weight, bias = ctx.parameters
        rows, dy_rows = rows_of(x), rows_of(dy)
        dx = np.empty(rows.shape, dy_rows.dtype)
        statistics = array_of(inverse), array_of(mean[0]) if mean else None
        scale = _scale(weight, ctx.zero_centered)
        scale_gradient, shift_gradient = _backward(dy_rows, rows, scale, statistics, dx)
        weight_gradient = add_summed_gradient(weight, scale_gradient)
        bias_gradient = None if bias is None else add_summed_gradient(bias, shift_gradient)
        return from_numpy(dx.reshape(x.shape)), weight_gradient, bias_gradient, None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _NormFunction.apply(x, weight, bias, epsilon, zero_centered)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _NormFunction.apply(x, weight, None, epsilon, zero_centered)
