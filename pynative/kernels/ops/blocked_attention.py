"""Attention by blocks of queries, of MindSpore operators (Dao et al., "FlashAttention", 2022): scores are computed for
one block at a time.

Kept for backward, beside the input: the output in float32 and two numbers for each head and query, from which a block's
probabilities come again.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mindspore import Tensor, ops

from pynative.kernels.block import AttentionRule, Partial, Scores
from pynative.kernels.ops.attention import attention_block, attention_block_gradient, shown_to
from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.tape.autograd import Function

QUERY_BLOCK = 256
"""The most queries of a block, whose scores are [b, n, QUERY_BLOCK, s] at most."""


def query_blocks(length: int) -> Iterator[slice]:
    """Consecutive slices of at most QUERY_BLOCK queries that cover a sequence of `length`."""
    return (slice(first, min(first + QUERY_BLOCK, length)) for first in range(0, length, QUERY_BLOCK))


def _key_blocks(whole: Scores, rows: slice) -> list[tuple[slice, Scores]]:
    """(keys, their scores) of each block of keys that the queries `rows` see.

    Without a causal mask there is one block of all keys; with it the keys before the queries and the square at the
    diagonal; with chosen keys one block up to the last query, with a mask, to which the given one is added.
    """
    of_documents = None if whole.first_keys is None else whole.first_keys[:, rows]

    def part(first: int, stop: int, causal: bool) -> tuple[slice, Scores]:
        mask, queries = None if whole.mask is None else whole.mask[:, :, rows], (range(rows.start, rows.stop),)
        keys = (range(first, stop),)
        scores = replace(
            whole, causal=causal, mask=mask, query_positions=queries, key_positions=keys, first_keys=of_documents
        )
        return slice(first, stop), scores

    if whole.chosen is not None:
        hidden = ops.logical_not(shown_to(whole.chosen[:, rows], rows.stop)).expand_dims(1)
        keys, of_block = part(0, rows.stop, False)
        given = hidden if of_block.mask is None else ops.logical_or(hidden, of_block.mask[..., keys])
        return [(keys, replace(of_block, chosen=None, mask=given))]
    if not whole.is_causal:
        return [part(0, whole.keys, False)]
    square, window = part(rows.start, rows.stop, True), whole.form.window
    first = 0 if window is None else max(0, rows.start - window)
    if of_documents is not None:
        first = max(first, int(of_documents[:, 0].min()))
    return [square, part(first, rows.start, False)] if first < rows.start else [square]


class _BlockedAttention(Function):
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, whole: Scores) -> Tensor:
        partials = []
        for rows in query_blocks(whole.queries):
            partial = None
            for keys, scores in _key_blocks(whole, rows):
                partial = attention_block(q[rows], k[keys], v[keys], scores, partial)
            partials.append(partial)
        ctx.whole = whole
        out, maxima, inverse_sums = zip(*partials, strict=True)
        out = ops.cat(out)
        ctx.save_for_backward(q, k, v, out, ops.cat(maxima, -1), ops.cat(inverse_sums, -1))
        return cast(out, q.dtype)

    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, maximum, inverse_sum = ctx.saved_tensors
        dq_blocks, dk, dv = [], ops.zeros(k.shape, out.dtype), ops.zeros(v.shape, out.dtype)
        for rows in query_blocks(len(q)):
            partial, dq = Partial(out[rows], maximum[..., rows], inverse_sum[..., rows]), None
            for keys, scores in _key_blocks(ctx.whole, rows):
                dq, *parts = attention_block_gradient(q[rows], k[keys], v[keys], dout[rows], partial, scores, dq)
                for total, part in zip((dk, dv), parts, strict=True):
                    total[keys] = total[keys] + part
            dq_blocks.append(dq)
        dq, dk, dv = (cast(x, q.dtype) for x in (ops.cat(dq_blocks), dk, dv))
        return dq, dk, dv, None


@widened_on_cpu("q")
def attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    return _BlockedAttention.apply(q, k, v, Scores.whole(rule, q, k))
