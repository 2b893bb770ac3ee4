"""Operators where branches part and meet, on the host: the fork, joined features, and the addition of bias and
residual with dropout, a block of rows at a time; dropout by itself, too."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.dropout import Dropout, Key, Rows
from pynative.kernels.host.arrays import add_summed_gradient, array_or_none, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows, row_blocks, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import fill, float32_for
from pynative.tape.autograd import Function, Moved

Masks = Callable[[int, int], Array]
"""(start, stop) -> dropout mask of the rows start..stop-1, float32 [rows, h]."""


def _masks(dropout: Dropout, shape: tuple[int, ...]) -> Masks | None:
    return partial(dropout.rows, shape) if dropout.rate else None


def _part(array: Array | None, start: int, stop: int) -> Array | None:
    return None if array is None else array[start:stop]


def _forward(x: Array, bias: Array | None, residual: Array | None, masks: Masks | None) -> Array:
    """residual + dropout(x + bias), [r, h] in the residual's type, which may be wider than x's."""
    y = np.empty(x.shape, x.dtype if residual is None else residual.dtype)

    def block(start: int, stop: int) -> None:
        mask = None if masks is None else masks(start, stop)
        ENGINE.add(x[start:stop], bias, mask, _part(residual, start, stop), y[start:stop])

    run(block, row_blocks(len(x), x.shape[1] * 4))
    return y


def _backward(dy: Array, dx: Array, masks: Masks | None, biased: bool) -> Array | None:
    """Fill dx [r, h] with dy times the mask, unless dx is dy itself. Returns the sum of dx over rows, float32 [h], if
    `biased`, else None."""
    blocks = row_blocks(len(dy), dy.shape[1] * 4)
    sums = np.empty((len(blocks), dy.shape[1]), np.float32) if biased else None

    def block(index: int, start: int, stop: int) -> None:
        result = out = dx[start:stop]
        if dx is not dy:
            mask, result = None if masks is None else masks(start, stop), float32_for(out)
            ENGINE.add(dy[start:stop], None, mask, None, result)
            fill(out, result)
        if sums is not None:
            ENGINE.sum_rows(result, sums[index])

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    return None if sums is None else sums.sum(axis=0)


class _BiasDropoutAdd(Function):
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor | None, dropout: Dropout) -> Tensor:
        rows = rows_of(x)
        ctx.bias, ctx.masks, ctx.has_residual = bias, _masks(dropout, x.shape), residual is not None
        ctx.dtype = rows.dtype
        y = _forward(rows, array_or_none(bias), None if residual is None else rows_of(residual), ctx.masks)
        return from_numpy(y.reshape(x.shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows = rows_of(dy)
        stays = ctx.masks is None and rows.dtype == ctx.dtype
        dx = rows if stays else np.empty(rows.shape, ctx.dtype)
        bias_gradient = None
        if not stays or ctx.bias is not None:
            sums = _backward(rows, dx, ctx.masks, ctx.bias is not None)
            bias_gradient = None if sums is None else add_summed_gradient(ctx.bias, sums)
        return dy if stays else from_numpy(dx.reshape(dy.shape)), bias_gradient, dy if ctx.has_residual else None, None


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


def _sum(one: Tensor, other: Tensor) -> Tensor:
    left, right = rows_of(one), rows_of(other)
    total = np.empty(left.shape, left.dtype)
    by_rows(lambda left, right, total: ENGINE.add(left, None, None, right, total), left, right, total)
    return from_numpy(total.reshape(one.shape))


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    return Moved.apply(x, lambda x: (from_numpy(array_of(x)), from_numpy(array_of(x))), _sum)


def _halves(gradient: Tensor, width: int) -> tuple[Tensor, ...]:
    halves = np.split(array_of(gradient), [width], axis=-1)
    return tuple(from_numpy(np.ascontiguousarray(half)) for half in halves)


def join_features(x: Tensor, y: Tensor) -> Tensor:
    return Moved.apply(
        x,
        y,
        lambda x, y: from_numpy(np.concatenate((array_of(x), array_of(y)), axis=-1)),
        partial(_halves, width=x.shape[-1]),
    )
