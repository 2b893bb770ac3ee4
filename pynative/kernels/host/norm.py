"""Layer norm and RMS norm over the last axis, on the host, a block of rows at a time.

Saved for backward: the input and two numbers a row, one for RMS norm.
"""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows, sum_by_rows
from pynative.memory.arrays import array_of
from pynative.tape.autograd import Function


def _scale(weight: Tensor, zero_centered: bool) -> Array:
    values = as_float32(weight)
    return values + np.float32(1) if zero_centered else values


class _NormFunction(Function):
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, zero_centered: bool
    ) -> Tensor:
        ctx.parameters, ctx.zero_centered = (weight, bias), zero_centered
        shift, rows = None if bias is None else as_float32(bias), rows_of(x)
        y, inverse = np.empty(rows.shape, rows.dtype), np.empty(len(rows), np.float32)
        mean = None if bias is None else np.empty(len(rows), np.float32)
        scale = _scale(weight, zero_centered)
        by_rows(
            lambda x, y, mean, inverse: ENGINE.norm(x, scale, shift, epsilon, y, mean, inverse), rows, y, mean, inverse
        )
        statistics = (inverse,) if mean is None else (inverse, mean)
        ctx.save_for_backward(x, *map(from_numpy, statistics))
        return from_numpy(y.reshape(x.shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse, *mean = ctx.saved_tensors
        weight, bias = ctx.parameters
        rows, dy_rows = rows_of(x), rows_of(dy)
        dx, scale = np.empty(rows.shape, dy_rows.dtype), _scale(weight, ctx.zero_centered)

        def gradient(x: Array, dy: Array, mean: Array | None, inverse: Array, dx: Array, *sums: Array) -> None:
            ENGINE.norm_gradient(dy, x, scale, mean, inverse, dx, sums[0], None if mean is None else sums[1])

        statistics = array_of(mean[0]) if mean else None, array_of(inverse)
        scale_gradient, shift_gradient = sum_by_rows(gradient, rows, dy_rows, *statistics, dx, parts=2)
        weight_gradient = add_summed_gradient(weight, scale_gradient)
        bias_gradient = None if bias is None else add_summed_gradient(bias, shift_gradient)
        return from_numpy(dx.reshape(x.shape)), weight_gradient, bias_gradient, None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _NormFunction.apply(x, weight, bias, epsilon, zero_centered)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _NormFunction.apply(x, weight, None, epsilon, zero_centered)
