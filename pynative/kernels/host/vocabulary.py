"""The rows of a table of embeddings, the parts of a vocabulary-parallel cross entropy, and the mean of losses,
on the host."""

from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import as_float32, delivered, gradient_memory, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows, row_blocks, run
from pynative.memory.arrays import array_of, writable
from pynative.memory.rounding import bits, widened
from pynative.tape.autograd import Function, Moved, add_weight_gradient


def _gather(table: Array, rows: Array, out: Array) -> None:
    """Fill out[i] with table[rows[i]], zeros where rows[i] is outside of the table."""
    table, out = bits(table), bits(out)

    def block(start: int, stop: int) -> None:
        wanted, result = rows[start:stop], out[start:stop]
        if len(table):
            np.take(table, wanted, axis=0, out=result, mode="clip")
        result[(wanted < 0) | (wanted >= len(table))] = 0

    run(block, row_blocks(len(rows), table.shape[1] * 4))


def _scatter_sum(rows: Array, gradients: Array, out: Array, accumulate: bool) -> None:
    """Fill out[j] with the sum of gradients[i] with rows[i] == j, rows outside of out aside; accumulate: add it. Equal
    rows are brought together by a stable sort and summed in one reduceat: np.add.at is many times slower."""
    if not accumulate:
        out[...] = 0
    order = np.argsort(rows, kind="stable")
    first, stop = np.searchsorted(rows[order], (0, len(out)))
    order = order[first:stop]
    if not len(order):
        return
    present, starts = np.unique(rows[order], return_index=True)
    bounds = [*starts.tolist(), len(order)]

    def block(start: int, stop: int) -> None:
        taken, ids = order[bounds[start] : bounds[stop]], present[start:stop]
        sums = np.add.reduceat(widened(gradients[taken]), starts[start:stop] - bounds[start], axis=0)
        out[ids] = sums if not accumulate else widened(out[ids]) + sums

    run(block, row_blocks(len(present), out.shape[1] * 4))


class _Embedding(Function):
    def forward(ctx: Any, ids: Tensor, weight: Tensor, first_id: int) -> Tensor:
        table, rows = array_of(weight), array_of(ids).reshape(-1) - first_id
        y = np.empty((len(rows), table.shape[1]), table.dtype)
        _gather(table, rows, y)
        ctx.rows, ctx.weight = rows, weight
        return from_numpy(y.reshape(*ids.shape, table.shape[1]))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return None, add_weight_gradient(ctx.weight, partial(_weight_gradient, ctx.rows, dy, ctx.weight)), None


def _weight_gradient(rows: Array, dy: Tensor, weight: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    gradient = gradient_memory(out, weight.shape, array_of(weight).dtype)
    _scatter_sum(rows, rows_of(dy), gradient, accumulate)
    return delivered(gradient, out)


def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    return _Embedding.apply(ids, weight, first_id)


_overflow_shows: "np.errstate[Any]" = np.errstate(over="ignore", invalid="ignore")
"""Warnings off: infinite logits give a loss and gradients of NaN, by which the training loop learns of them."""


def _columns(target: Array, first_id: int, width: int) -> tuple[Array, Array]:
    """(rows whose target is among this rank's `width` columns from `first_id` on, these targets' columns)."""
    local = target.reshape(-1) - first_id
    rows = np.flatnonzero((local >= 0) & (local < width))
    return rows, local[rows]


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    rows = rows_of(logits)
    # Three arrays: the backward keeps only the first.
    maximum, total, target_logit = (np.zeros(len(rows), np.float32) for _ in range(3))
    by_rows(ENGINE.logit_statistics, rows, maximum, total)
    present, columns = _columns(array_of(target), first_id, rows.shape[1])
    target_logit[present] = widened(rows[present, columns])
    leading = logits.shape[:-1]
    return tuple(from_numpy(values.reshape(leading)) for values in (maximum, total, target_logit))


@_overflow_shows
def cross_entropy_addends(own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor) -> Tensor:
    factor = np.exp(array_of(own_maximum) - array_of(maximum))
    return from_numpy(np.stack((array_of(own_sum) * factor, array_of(target_logit))))


@_overflow_shows
def cross_entropy_loss(added: Tensor, maximum: Tensor) -> Tensor:
    total, target_logit = array_of(added)
    return from_numpy(np.log(total) + array_of(maximum) - target_logit)


@_overflow_shows
def cross_entropy_gradient(
    logits: Tensor,
    maximum: Tensor,
    added: Tensor,
    target: Tensor,
    first_id: int,
    dloss: Tensor,
    overwrite: bool = False,
) -> Tensor:
    rows, highest = rows_of(logits), array_of(maximum).reshape(-1)
    gradient = writable(logits).reshape(rows.shape) if overwrite else np.empty_like(rows)
    upstream = as_float32(dloss).reshape(-1)
    weight = upstream / array_of(added)[0].reshape(-1)
    present, columns = _columns(array_of(target), first_id, rows.shape[1])
    chosen = widened(rows[present, columns]) - highest[present]
    by_rows(ENGINE.weighted_exponentials, rows, highest, weight, gradient)
    gradient[present, columns] = np.exp(chosen) * weight[present] - upstream[present]
    return from_numpy(gradient.reshape(logits.shape))


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    weights = np.ones(losses.shape, np.float32) if mask is None else array_of(mask).astype(np.float32)
    weights = weights / np.float32(max(np.sum(weights) if count is None else count, 1))
    return Moved.apply(
        losses,
        lambda losses: from_numpy(np.sum(as_float32(losses) * weights, keepdims=True).reshape(())),
        lambda dmean: from_numpy(weights * as_float32(dmean)),
    )
