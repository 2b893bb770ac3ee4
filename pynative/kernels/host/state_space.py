"""Two operators of a state space layer (Mamba-2, Dao and Gu, 2024) on the host: the addition of scaled heads, and RMS
norm of groups of features.

r rows of a block, c channels.
"""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, rows_of
from pynative.kernels.host.threads import by_rows, sum_by_rows
from pynative.memory.rounding import fill, widened
from pynative.tape.autograd import Function


def _spread(factors: Tensor, heads: int, width: int) -> Array:
    return np.repeat(as_float32(factors), width // heads)


class _AddScaledHeads(Function):
    def forward(ctx: Any, y: Tensor, x: Tensor, factors: Tensor) -> Tensor:
        ctx.factors = factors
        ctx.save_for_backward(x)
        shape = x.shape
        rows, added = (rows_of(each.reshape(*shape[:2], -1)) for each in (y, x))
        out, scale = np.empty_like(rows), _spread(factors, shape[2], rows.shape[1])
        by_rows(lambda y, x, out: fill(out, widened(y) + widened(x) * scale), rows, added, out)
        return from_numpy(out.reshape(shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,), factors = ctx.saved_tensors, ctx.factors
        heads = x.shape[2]
        rows, upstream = (rows_of(each.reshape(*x.shape[:2], -1)) for each in (x, dy))
        dx, scale = np.empty_like(rows), _spread(factors, heads, rows.shape[1])

        def gradient(x: Array, dy: Array, dx: Array, total: Array) -> None:
            wide = widened(dy)
            fill(dx, wide * scale)
            total += np.einsum("rc,rc->c", widened(x), wide)

        sums = sum_by_rows(gradient, rows, upstream, dx)[0]
        dfactors = add_summed_gradient(factors, sums.reshape(heads, -1).sum(1))
        return dy, from_numpy(dx.reshape(x.shape)), dfactors


def add_scaled_heads(y: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    return _AddScaledHeads.apply(y, x, factors)


def _normed(x: Array, groups: int, epsilon: float) -> tuple[Array, Array]:
    """(x / root mean square of its group, float32 [r, groups, c / groups]; 1 / that root [r, groups, 1]), before the
    weight."""
    grouped = widened(x).reshape(len(x), groups, -1)
    squares = np.einsum("rgc,rgc->rg", grouped, grouped)[..., None] / np.float32(grouped.shape[2])
    inverse = 1 / np.sqrt(squares + np.float32(epsilon))
    return grouped * inverse, inverse


class _GroupedRmsNorm(Function):
    def forward(ctx: Any, x: Tensor, weight: Tensor, groups: int, epsilon: float) -> Tensor:
        ctx.weight, ctx.groups, ctx.epsilon = weight, groups, epsilon
        ctx.save_for_backward(x)
        rows, scale = rows_of(x), as_float32(weight)
        out = np.empty_like(rows)
        by_rows(lambda x, out: fill(out, _normed(x, groups, epsilon)[0].reshape(x.shape) * scale), rows, out)
        return from_numpy(out.reshape(x.shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,), scale = ctx.saved_tensors, as_float32(ctx.weight)
        rows, groups, epsilon = rows_of(x), ctx.groups, ctx.epsilon
        dx = np.empty_like(rows)

        def gradient(x: Array, dy: Array, dx: Array, total: Array) -> None:
            normed, inverse = _normed(x, groups, epsilon)
            wide = widened(dy)
            total += np.einsum("rc,rc->c", wide, normed.reshape(x.shape))
            share = (wide * scale).reshape(normed.shape)
            mean = np.einsum("rgc,rgc->rg", share, normed)[..., None] / np.float32(normed.shape[2])
            fill(dx, (inverse * (share - normed * mean)).reshape(x.shape))

        sums = sum_by_rows(gradient, rows, rows_of(dy), dx)[0]
        return from_numpy(dx.reshape(x.shape)), add_summed_gradient(ctx.weight, sums), None, None


def grouped_rms_norm(x: Tensor, weight: Tensor, groups: int, epsilon: float) -> Tensor:
    return _GroupedRmsNorm.apply(x, weight, groups, epsilon)
