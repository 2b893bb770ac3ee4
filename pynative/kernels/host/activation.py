"""Activations with the bias in front of them fused in, on the host, a block of rows at a time. The input is saved for
the backward, not the result."""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.fused_rows import GATED_PARTS
from parallel_core.numerics.activations import gated_unit
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, array_or_none, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows, sum_by_rows
from pynative.tape.autograd import Function


def _backward(name: str, x: Array, bias: Array | None, dy: Array, dx: Array) -> Array | None:
    """Fill dx [r, f] with the gradient of x + bias. Returns its sum over rows, float32 [f], which is the gradient of
    the bias; None without a bias."""

    def gradient(x: Array, dy: Array, dx: Array, total: Array | None = None) -> None:
        ENGINE.activation_gradient(name, x, bias, dy, dx, total)

    if bias is not None:
        return sum_by_rows(gradient, x, dy, dx)[0]
    by_rows(gradient, x, dy, dx)
    return None


class _BiasActivation(Function):
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, name: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.name, ctx.bias = name, bias
        rows = rows_of(x)
        columns = rows.shape[1] // (GATED_PARTS if gated_unit(name) else 1)
        y = np.empty((len(rows), columns), rows.dtype)
        added = array_or_none(bias)
        by_rows(lambda x, y: ENGINE.activation(name, x, added, y), rows, y)
        return from_numpy(y.reshape(*x.shape[:-1], columns))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,), bias = ctx.saved_tensors, ctx.bias
        rows, dy_rows = rows_of(x), rows_of(dy)
        dx = np.empty(rows.shape, dy_rows.dtype)
        sums = _backward(ctx.name, rows, array_or_none(bias), dy_rows, dx)
        gradient = None if sums is None else add_summed_gradient(bias, sums)
        return from_numpy(dx.reshape(x.shape)), gradient, None


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return _BiasActivation.apply(x, bias, activation)
