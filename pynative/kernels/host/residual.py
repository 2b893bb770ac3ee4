"""The two ends of a residual branch: the fork, and bias, dropout and residual in one sweep; dropout; on the host."""

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.dropout import Key, dropout_mask
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, tensor_like
from pynative.kernels.host.threads import row_blocks, run


def _mask(shape: tuple[int, ...], dropout: tuple[float, Key], start: int, stop: int) -> np.ndarray | None:
    rate, key = dropout
    return dropout_mask(key, shape, rate, slice(start, stop)) if rate else None


def _rows(tensor: Tensor) -> np.ndarray:
    return as_float32(tensor).reshape(-1, tensor.shape[-1])


def _forward(x: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None, dropout: tuple[float, Key]):
    y = np.empty(x.shape, np.float32)

    def block(start: int, stop: int) -> None:
        part, result, mask = x[start:stop], y[start:stop], _mask(x.shape, dropout, start, stop)
        if bias is not None:
            part = np.add(part, bias, out=result)
        if mask is not None:
            part = np.multiply(part, mask, out=result)
        if residual is not None:
            np.add(part, residual[start:stop], out=result)

    run(block, row_blocks(len(x), x.shape[1] * 4))
    return y


def _backward(dy: np.ndarray, dx: np.ndarray, dropout: tuple[float, Key]) -> np.ndarray:
    """Fill dx (may be dy itself without dropout); return its sum over rows."""
    blocks = row_blocks(len(dy), dy.shape[1] * 4)
    sums = np.empty((len(blocks), dy.shape[1]), np.float32)

    def block(index: int, start: int, stop: int) -> None:
        mask = _mask(dy.shape, dropout, start, stop)
        if mask is not None:
            np.multiply(dy[start:stop], mask, out=dx[start:stop])
        np.matmul(np.ones(stop - start, np.float32), dx[start:stop], out=sums[index])

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    return sums.sum(axis=0)


class _BiasDropoutAdd(Function):
    @staticmethod
    def forward(ctx, x, bias, residual, rate, key):
        ctx.bias, ctx.dropout, ctx.has_residual = bias, (rate, key), residual is not None
        bias_array = None if bias is None else as_float32(bias)
        y = _forward(_rows(x), bias_array, None if residual is None else _rows(residual), ctx.dropout)
        return tensor_like(y.reshape(x.shape), x)

    @staticmethod
    def backward(ctx, dy):
        residual_gradient = dy if ctx.has_residual else None
        if not ctx.dropout[0] and ctx.bias is None:
            return dy, None, residual_gradient, None, None
        rows = _rows(dy)
        dx = np.empty(rows.shape, np.float32) if ctx.dropout[0] else rows
        sums = _backward(rows, dx, ctx.dropout)
        bias_gradient = None if ctx.bias is None else add_summed_gradient(ctx.bias, sums)
        x_gradient = tensor_like(dx.reshape(dy.shape), dy) if ctx.dropout[0] else dy
        return x_gradient, bias_gradient, residual_gradient, None, None


def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, rate: float, key: Key) -> Tensor:
    return _BiasDropoutAdd.apply(x, bias, residual, rate, key)


def dropout(x: Tensor, rate: float, key: Key) -> Tensor:
    return _BiasDropoutAdd.apply(x, None, None, rate, key)


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
