"""Casts, scales and caps of a tensor's elements, on the host."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import rows_of
from pynative.kernels.host.threads import by_rows, row_blocks, run
from pynative.memory.arrays import array_of, array_type
from pynative.memory.rounding import convert, fill, float32_for, widened
from pynative.tape.autograd import Function, Moved

Compute = Callable[[slice, Array], Array]
"""(rows, float32 scratch memory for them) -> these rows of the result in float32."""


def _by_rows(compute: Compute, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """A tensor of this shape and type, computed a block of rows at a time, each element rounded once."""
    rows = np.empty((prod(shape[:-1]), prod(shape[-1:])), dtype)

    def block(start: int, stop: int) -> None:
        out = rows[start:stop]
        fill(out, compute(slice(start, stop), float32_for(out)))

    run(block, row_blocks(len(rows), rows.shape[1] * 4))
    return from_numpy(rows.reshape(shape))


def _rounded(x: Tensor, dtype: mindspore.Type) -> Tensor:
    rows = rows_of(x)
    y = np.empty(rows.shape, array_type(dtype))
    by_rows(convert, rows, y)
    return from_numpy(y.reshape(x.shape))


def _product(x: Tensor, factor: float) -> Tensor:
    width = x.shape[-1] if x.shape else 1  # works for no rows, too: an expert may have no token
    rows, number = array_of(x).reshape(prod(x.shape[:-1]), width), np.float32(factor)
    return _by_rows(lambda span, out: np.multiply(widened(rows[span]), number, out=out), x.shape, rows.dtype)


def cast(x: Tensor, dtype: mindspore.Type) -> Tensor:
    own = x.dtype
    return x if own is dtype else Moved.apply(x, lambda x: _rounded(x, dtype), lambda dy: _rounded(dy, own))


def scale(x: Tensor, factor: float) -> Tensor:
    scaled = partial(_product, factor=factor)
    return Moved.apply(x, scaled, scaled)


def scale_features(x: Tensor, factors: Array) -> Tensor:
    def scaled(x: Tensor) -> Tensor:
        rows = rows_of(x)
        return _by_rows(lambda span, out: np.multiply(widened(rows[span]), factors, out=out), x.shape, rows.dtype)

    return Moved.apply(x, scaled, scaled)


class _SoftCap(Function):
    """The cap on the tape. Its input is kept, not its result: cross entropy's backward overwrites logits, and near the
    cap a rounded result no longer tells its slope."""

    def forward(ctx: Any, x: Tensor, cap: float) -> Tensor:
        ctx.cap, rows = cap, rows_of(x)
        ctx.save_for_backward(x)
        number = np.float32(cap)
        return _by_rows(
            lambda span, out: np.multiply(_saturation(rows[span], cap, out), number, out=out), x.shape, rows.dtype
        )

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        rows, dy_rows = rows_of(x), rows_of(dy)

        def gradient(span: slice, out: Array) -> Array:
            np.square(_saturation(rows[span], ctx.cap, out), out=out)
            return np.multiply(np.subtract(1, out, out=out), widened(dy_rows[span]), out=out)

        return _by_rows(gradient, dy.shape, dy_rows.dtype), None


def _saturation(x: Array, cap: float, out: Array) -> Array:
    """tanh(x / cap), written into `out`."""
    return np.tanh(np.divide(widened(x), np.float32(cap), out=out), out=out)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return _SoftCap.apply(x, cap)
