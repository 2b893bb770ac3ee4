"""The two ends of a residual branch: the fork, and bias, dropout and residual in one sweep; dropout; on the host."""

from collections.abc import Callable
from functools import partial

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.dropout import Dropout, Key, Rows
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, tensor_like
from pynative.kernels.host.threads import row_blocks, run


def _rows(tensor: Tensor) -> np.ndarray:
    return as_float32(tensor).reshape(-1, tensor.shape[-1])


Masks = Callable[[int, int], np.ndarray]
"""(start, stop) -> the mask of these rows."""


def _masks(dropout: Dropout, shape: tuple[int, ...]) -> Masks | None:
    return partial(dropout.rows, shape) if dropout.rate else None


def _forward(x: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None, masks: Masks | None) -> np.ndarray:
    y = np.empty(x.shape, np.float32)

    def block(start: int, stop: int) -> None:
        part, result = x[start:stop], y[start:stop]
        if bias is not None:
            part = np.add(part, bias, out=result)
        if masks is not None:
            part = np.multiply(part, masks(start, stop), out=result)
        if residual is not None:
            np.add(part, residual[start:stop], out=result)

    run(block, row_blocks(len(x), x.shape[1] * 4))
    return y


def _backward(dy: np.ndarray, dx: np.ndarray, masks: Masks | None) -> np.ndarray:
    """Fill dx (may be dy itself without dropout); return its sum over rows."""
    blocks = row_blocks(len(dy), dy.shape[1] * 4)
    sums = np.empty((len(blocks), dy.shape[1]), np.float32)

    def block(index: int, start: int, stop: int) -> None:
        if masks is not None:
            np.multiply(dy[start:stop], masks(start, stop), out=dx[start:stop])
        np.matmul(np.ones(stop - start, np.float32), dx[start:stop], out=sums[index])

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    return sums.sum(axis=0)


class _BiasDropoutAdd(Function):
    @staticmethod
    def forward(ctx, x, bias, residual, dropout):
        ctx.bias, ctx.masks, ctx.has_residual = bias, _masks(dropout, x.shape), residual is not None
        bias_array = None if bias is None else as_float32(bias)
        y = _forward(_rows(x), bias_array, None if residual is None else _rows(residual), ctx.masks)
        return tensor_like(y.reshape(x.shape), x)

    @staticmethod
    def backward(ctx, dy):
        residual_gradient = dy if ctx.has_residual else None
        if ctx.masks is None and ctx.bias is None:
            return dy, None, residual_gradient, None
        rows = _rows(dy)
        dx = rows if ctx.masks is None else np.empty(rows.shape, np.float32)
        sums = _backward(rows, dx, ctx.masks)
        bias_gradient = None if ctx.bias is None else add_summed_gradient(ctx.bias, sums)
        x_gradient = dy if ctx.masks is None else tensor_like(dx.reshape(dy.shape), dy)
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
        array = x.asnumpy()
        return from_numpy(array), from_numpy(array)

    @staticmethod
    def backward(ctx, one, other):
        left, right = _rows(one), _rows(other)
        total = np.empty(left.shape, np.float32)
        run(lambda a, b: np.add(left[a:b], right[a:b], out=total[a:b]), row_blocks(len(left), left.shape[1] * 4))
        return tensor_like(total.reshape(one.shape), one)


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    return _Fork.apply(x)
