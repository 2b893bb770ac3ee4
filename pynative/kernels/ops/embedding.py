"""Rows of a table by id, of MindSpore operators."""

from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.kernels.ops.linear import delivered
from pynative.tape.autograd import Function, add_weight_gradient


def row_of(ids: Tensor, first_id: int, rows: int) -> tuple[Tensor, Tensor]:
    """(the row of each id in a table that begins at `first_id`, 0 where it has none; bool, whether it has one)."""
    local = cast(ids, mindspore.int32)
    if first_id:
        local = local - first_id
    present = ops.logical_and(local >= 0, local < rows)
    return ops.select(present, local, 0), present


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, first_id: int) -> Tensor:
        row, present = row_of(ids, first_id, weight.shape[0])
        ctx.weight, ctx.row, ctx.present = weight, row.reshape(-1), present.expand_dims(-1)
        return ops.select(ctx.present, ops.gather(weight, row, 0), 0.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return add_weight_gradient(ctx.weight, partial(_weight_gradient, ctx, dy)), None, None


def _weight_gradient(ctx: Any, dy: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """The sum over each id's rows, in float32."""
    rows = cast(ops.select(ctx.present, dy, 0.0), mindspore.float32).reshape(-1, dy.shape[-1])
    return delivered(ops.unsorted_segment_sum(rows, ctx.row, ctx.weight.shape[0]), out, accumulate)


@widened_on_cpu("weight")
def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    return _Embedding.apply(weight, ids, first_id)
