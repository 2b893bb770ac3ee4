"""The two ends of a residual branch: the fork, and bias, dropout and residual in one sweep; dropout; on the host."""

from collections.abc import Callable
from functools import partial

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.dropout import Dropout, Key, Rows
from pynative.kernels.host.arrays import add_summed_gradient, array_of, array_or_none, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import row_blocks, run
from pynative.rounding import convert, fill, float32_for, widened

Masks = Callable[[int, int], np.ndarray]
"""(start, stop) -> the mask of these rows."""


def _masks(dropout: Dropout, shape: tuple[int, ...]) -> Masks | None:
    return partial(dropout.rows, shape) if dropout.rate else None


def _forward(x: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None, masks: Masks | None) -> np.ndarray:
    y = np.empty(x.shape, x.dtype if residual is None else residual.dtype)
    shift = None if bias is None else widened(bias)

    def block(start: int, stop: int) -> None:
        part, out = widened(x[start:stop]), y[start:stop]
        result = float32_for(out)
        if shift is not None:
            part = np.add(part, shift, out=result)
        if masks is not None:
            part = np.multiply(part, masks(start, stop), out=result)
        if residual is not None:
            part = np.add(part, widened(residual[start:stop]), out=result)
        fill(out, part)

    run(block, row_blocks(len(x), x.shape[1] * 4))
    return y


def _backward(dy: np.ndarray, dx: np.ndarray, masks: Masks | None) -> np.ndarray:
    """Fill dx (may be dy itself without dropout and in one type); return its sum over rows."""
    blocks = row_blocks(len(dy), dy.shape[1] * 4)
    sums = np.empty((len(blocks), dy.shape[1]), np.float32)

    def block(index: int, start: int, stop: int) -> None:
        result = out = dx[start:stop]
        if masks is not None:
            result = np.multiply(widened(dy[start:stop]), masks(start, stop), out=float32_for(out))
            fill(out, result)
        elif dx is not dy:
            convert(dy[start:stop], out)
        ENGINE.sum_rows(result, sums[index])

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    return sums.sum(axis=0)


class _BiasDropoutAdd(Function):
    @staticmethod
    def forward(ctx, x, bias, residual, dropout):
        ctx.bias, ctx.masks, ctx.has_residual = bias, _masks(dropout, x.shape), residual is not None
        x_rows, residual_rows = rows_of(x), None if residual is None else rows_of(residual)
        ctx.dtype = x_rows.dtype
        y = _forward(x_rows, array_or_none(bias), residual_rows, ctx.masks)
        return from_numpy(y.reshape(x.shape))

    @staticmethod
    def backward(ctx, dy):
        residual_gradient = dy if ctx.has_residual else None
        rows = rows_of(dy)
        is_unchanged = ctx.masks is None and rows.dtype == ctx.dtype
        if is_unchanged and ctx.bias is None:
            return dy, None, residual_gradient, None
        dx = rows if is_unchanged else np.empty(rows.shape, ctx.dtype)
        sums = _backward(rows, dx, ctx.masks)
        bias_gradient = None if ctx.bias is None else add_summed_gradient(ctx.bias, sums)
        x_gradient = dy if is_unchanged else from_numpy(dx.reshape(dy.shape))
        return x_gradient, bias_gradient, residual_gradient, None


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    rate: float = 0.0,
    key: Key | None = None,
    rows: Rows | None = None,
) -> Tensor:
    return _BiasDropoutAdd.apply(x, bias, residual, Dropout(rate, key or (), rows))


def dropout(x: Tensor, rate: float, key: Key, rows: Rows | None = None) -> Tensor:
    return _BiasDropoutAdd.apply(x, None, None, Dropout(rate, key, rows)) if rate else x


class _Fork(Function):
    @staticmethod
    def forward(ctx, x):
        array = array_of(x)
        return from_numpy(array), from_numpy(array)

    @staticmethod
    def backward(ctx, one, other):
        left, right = rows_of(one), rows_of(other)
        total = np.empty(left.shape, left.dtype)

        def block(start: int, stop: int) -> None:
            out = total[start:stop]
            fill(out, np.add(widened(left[start:stop]), widened(right[start:stop]), out=float32_for(out)))

        run(block, row_blocks(len(left), left.shape[1] * 4))
        return from_numpy(total.reshape(one.shape))


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    return _Fork.apply(x)
