"""The rows of a table of embeddings, the parts of a vocabulary-parallel cross entropy, and the mean of losses,
of MindSpore operators."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.kernels.ops.linear import delivered
from pynative.tape.autograd import Function, add_weight_gradient


def row_of(ids: Tensor, first_id: int, rows: int) -> tuple[Tensor, Tensor]:
    """(row of each id in a table of `rows` rows that begins with `first_id`, 0 for an id outside of it; bool, whether
    the id is inside)."""
    local = cast(ids, mindspore.int32)
    if first_id:
        local = local - first_id
    present = ops.logical_and(local >= 0, local < rows)
    return ops.select(present, local, 0), present


class _Embedding(Function):
    def forward(ctx: Any, weight: Tensor, ids: Tensor, first_id: int) -> Tensor:
        row, present = row_of(ids, first_id, weight.shape[0])
        ctx.weight, ctx.row, ctx.present = weight, row.reshape(-1), present.expand_dims(-1)
        return ops.select(ctx.present, ops.gather(weight, row, 0), 0.0)

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return add_weight_gradient(ctx.weight, partial(_weight_gradient, ctx, dy)), None, None


def _weight_gradient(ctx: Any, dy: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """The gradient of the table: each row the sum, in float32, of the dy of its ids, written into `out` when given;
    `accumulate`: added to it."""
    rows = cast(ops.select(ctx.present, dy, 0.0), mindspore.float32).reshape(-1, dy.shape[-1])
    return delivered(ops.unsorted_segment_sum(rows, ctx.row, ctx.weight.shape[0]), out, accumulate)


@widened_on_cpu("weight")
def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    return _Embedding.apply(weight, ids, first_id)


BLOCK_ENTRIES = 1 << 24
"""The most logits that are widened to float32 at a time (64 MB), but for a single row that has more."""


def _row_blocks(logits: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """(rows, their logits in float32) in blocks of about BLOCK_ENTRIES logits, all leading axes counted as one."""
    rows = logits.reshape(-1, logits.shape[-1])
    step = max(1, BLOCK_ENTRIES // logits.shape[-1])
    for start in range(0, rows.shape[0], step):
        span = slice(start, min(start + step, rows.shape[0]))
        yield span, cast(rows[span], mindspore.float32)


def _joined(blocks: Sequence[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else ops.cat(tuple(blocks))


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    column, present = row_of(target.reshape(-1, 1), first_id, logits.shape[-1])
    blocks = [_statistics(rows, column[span]) for span, rows in _row_blocks(logits)]
    maximum, total, target_logit = (_joined(values).reshape(target.shape) for values in zip(*blocks, strict=True))
    return maximum, total, ops.select(present.reshape(target.shape), target_logit, 0.0)


def _statistics(rows: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    maximum = ops.amax(rows, -1, True)
    total = ops.exp(rows - maximum).sum(axis=-1)
    return maximum.reshape(-1), total, ops.gather_d(rows, 1, column).reshape(-1)


def cross_entropy_addends(own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor) -> Tensor:
    return ops.stack((own_sum * ops.exp(own_maximum - maximum), target_logit))


def cross_entropy_loss(added: Tensor, maximum: Tensor) -> Tensor:
    return ops.log(added[0]) + maximum - added[1]


def cross_entropy_gradient(
    logits: Tensor,
    maximum: Tensor,
    added: Tensor,
    target: Tensor,
    first_id: int,
    dloss: Tensor,
    overwrite: bool = False,
) -> Tensor:
    column, present = row_of(target.reshape(-1, 1), first_id, logits.shape[-1])
    highest, weight, at_target = _factors(maximum, added[0], dloss, present)
    blocks = [
        _gradient(rows, highest[span], weight[span], column[span], at_target[span], logits.dtype)
        for span, rows in _row_blocks(logits)
    ]
    return _joined(blocks).reshape(logits.shape)


def _factors(maximum: Tensor, total: Tensor, dloss: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three factors of every row, [s b, 1]: its maximum, dloss / the sum of exponentials, and the addend at the
    target's column (-dloss, 0 where `present` is false)."""
    dloss = dloss.reshape(-1, 1)
    return maximum.reshape(-1, 1), dloss / total.reshape(-1, 1), ops.select(present, -dloss, 0.0)


def _gradient(
    rows: Tensor, highest: Tensor, weight: Tensor, column: Tensor, at_target: Tensor, dtype: mindspore.Type
) -> Tensor:
    gradient = ops.exp(rows - highest) * weight
    return cast(ops.tensor_scatter_elements(gradient, column, at_target, axis=1, reduction="add"), dtype)


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    if mask is None:
        return losses.sum() / max(losses.size if count is None else count, 1.0)
    weights = cast(mask, losses.dtype)
    divisor = weights.sum().clip(1.0, None) if count is None else max(count, 1.0)
    return (losses * weights).sum() / divisor
