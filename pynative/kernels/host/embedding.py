"""Rows of a table by id, and the gradient that adds them up again, on the host."""

from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import delivered, gradient_memory, rows_of
from pynative.kernels.host.threads import row_blocks, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import bits, widened
from pynative.tape.autograd import Function, add_weight_gradient


def _gather(table: Array, rows: Array, out: Array) -> None:
    """out[i] = table[rows[i]], zeros where rows[i] is outside of the table."""
    table, out = bits(table), bits(out)

    def block(start: int, stop: int) -> None:
        wanted, result = rows[start:stop], out[start:stop]
        if len(table):
            np.take(table, wanted, axis=0, out=result, mode="clip")
        result[(wanted < 0) | (wanted >= len(table))] = 0

    run(block, row_blocks(len(rows), table.shape[1] * 4))


def _scatter_sum(rows: Array, gradients: Array, out: Array, accumulate: bool) -> None:
    """out[j] = sum of gradients[i] with rows[i] == j, ids outside of out left aside; `accumulate`: added to out.

    Equal ids are brought together by a stable sort and summed in one reduceat: np.add.at is many times slower.
    """
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
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, first_id: int) -> Tensor:
        table, rows = array_of(weight), array_of(ids).reshape(-1) - first_id
        y = np.empty((len(rows), table.shape[1]), table.dtype)
        _gather(table, rows, y)
        ctx.rows, ctx.weight = rows, weight
        return from_numpy(y.reshape(*ids.shape, table.shape[1]))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return None, add_weight_gradient(ctx.weight, partial(_weight_gradient, ctx.rows, dy, ctx.weight)), None


def _weight_gradient(rows: Array, dy: Tensor, weight: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    gradient = gradient_memory(out, weight.shape, array_of(weight).dtype)
    _scatter_sum(rows, rows_of(dy), gradient, accumulate)
    return delivered(gradient, out)


def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    return _Embedding.apply(ids, weight, first_id)
