"""The three matrix products of a linear layer y = x W^T + bias, the sum of its bias gradient, and the rounding of a
weight to MXFP4, on the host."""

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics import block_formats
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import array_or_none, delivered, gradient_memory, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import matmul_spans, run, sum_by_rows
from pynative.memory.arrays import array_of
from pynative.memory.rounding import put, widened


def _product(left: Array, right: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
    """`ENGINE.matmul` with a span of rows for each thread; float64, which no engine has, is multiplied by numpy."""
    if left.dtype == np.float64:
        product = left @ right if bias is None else left @ right + bias
        out[...] = out + product if accumulate else product
        return

    def span(start: int, stop: int) -> None:
        ENGINE.matmul(left[start:stop], right, out[start:stop], bias, accumulate)

    run(span, matmul_spans(len(left), left.shape[0] * left.shape[1] * right.shape[1]))


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows, weight_array = rows_of(x), array_of(weight)
    y = np.empty((len(rows), len(weight_array)), rows.dtype)
    _product(rows, weight_array.T, y, array_or_none(bias))
    return from_numpy(y.reshape(*x.shape[:-1], len(weight_array)))


def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    rows, weight_array = rows_of(dy), array_of(weight)
    dx = np.empty((len(rows), weight_array.shape[1]), rows.dtype)
    _product(rows, weight_array, dx)
    return from_numpy(dx.reshape(*dy.shape[:-1], weight_array.shape[1]))


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    dy_rows, x_rows = rows_of(dy), rows_of(x)
    gradient = gradient_memory(out, (dy_rows.shape[1], x_rows.shape[1]), dy_rows.dtype)
    _product(dy_rows.T, x_rows, gradient, accumulate=accumulate)
    return delivered(gradient, out)


def bias_gradient(dy: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    rows = rows_of(dy)
    gradient = gradient_memory(out, (rows.shape[1],), rows.dtype)
    put(sum_by_rows(ENGINE.sum_rows, rows)[0], gradient, accumulate)
    return delivered(gradient, out)


def mxfp4(weight: Tensor, axis: int) -> Tensor:
    rounded = np.empty(weight.shape, array_of(weight).dtype)
    put(block_formats.mxfp4(widened(array_of(weight)), axis), rounded, accumulate=False)
    return from_numpy(rounded)
