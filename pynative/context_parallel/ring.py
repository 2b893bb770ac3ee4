"""Ring attention (Liu et al., 2023): queries stay, keys and values travel around the group.

s the length of a member's shard of the sequence, b batch, n heads, g key/value groups, d size of a query's
and a key's head, e of a value's, r members.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mindspore import Tensor

from parallel_core.context import ContextLayout, cut, ring_block
from pynative import kernels
from pynative.collectives import Group, Recv, Send
from pynative.kernels.block import AttentionRule, Partial, Scores
from pynative.tape.autograd import Function

Tensors = Sequence[Tensor]


def _pass_on(group: Group, xs: Tensors) -> Callable[[], Tensors]:
    """Post the sends of xs to the next member and the receives of equal tensors from the previous one; returns a
    function that waits for the received tensors."""
    following, previous = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sends, receives = [Send(x, following) for x in xs], [Recv(x.shape, x.dtype, previous) for x in xs]
    works = group.batch_send_recv([*sends, *receives])

    def wait() -> Tensors:
        return [work.wait() for work in works][len(xs) :]

    return wait


def circulate(group: Group, xs: Tensors) -> Iterator[tuple[int, Tensors]]:
    """Yield (index of a member in the group, its tensors) for every member, first this one and its own `xs`, then the
    one before it, and so on; before tensors are yielded the messages of the next ones are posted. All members call this
    with tensors of equal shapes and types."""
    for step in range(group.size):
        arrive = _pass_on(group, xs) if step < group.size - 1 else None
        yield (group.rank - step) % group.size, xs
        if arrive is not None:
            xs = arrive()


class Sinks(NamedTuple):
    """Attention sinks: one more score for each head, which has no value (`kernels.with_sinks`). values [m]: one for
    each of m heads; first: the index there of the sink of this call's first head."""

    values: Tensor
    """[m], one for each of m heads, of which those of this call are some."""
    first: int
    """The index in `values` of the sink of this call's first head."""


@dataclass(frozen=True)
class _Ring:
    """The group of a call, and what all its blocks of scores have in common."""

    group: Group
    scores: Scores
    """The scores of the member's own queries with its own keys."""
    first_sink: int = 0

    def block(self, source: int) -> Scores:
        """The block of scores of this member's queries with the keys of member `source`, without the queries and keys
        between which the causal order leaves no score."""
        layout, length = ContextLayout(ring=self.group.size), self.scores.queries
        rectangle = ring_block(self.group.rank, source, self.scores.is_causal)
        queries, keys = (chunks * length // 2 for chunks in (rectangle.query_chunks, rectangle.key_chunks))
        return replace(
            self.scores,
            causal=rectangle.causal,
            query_positions=cut(self.scores.query_positions, length - queries, length),
            key_positions=cut(layout.ring_positions(self.scores.seq_length, source), 0, keys),
        )


class _RingAttention(Function):
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, ring: _Ring) -> Tensor:
        partial: Partial | None = None
        for source, (keys, values) in circulate(ring.group, (k, v)):
            partial = kernels.attention_block(q, keys, values, ring.block(source), partial)
        assert partial is not None
        if sinks is not None:
            partial = kernels.with_sinks(partial, sinks, ring.first_sink)
        ctx.ring, ctx.sinks = ring, sinks
        ctx.save_for_backward(q, k, v, *partial)
        return kernels.cast(partial.out, q.dtype)

    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *statistics = ctx.saved_tensors
        ring, partial, sinks = ctx.ring, Partial(*statistics), ctx.sinks
        own: Tensors | None = None
        dq = arrive = None
        for source, (keys, values) in circulate(ring.group, (k, v)):
            dq, *gradients = kernels.attention_block_gradient(q, keys, values, dout, partial, ring.block(source), dq)
            if source == ring.group.rank:
                own = gradients
                continue
            if arrive is not None:
                _add(gradients, arrive())
            arrive = _pass_on(ring.group, gradients)
        assert own is not None
        if arrive is not None:
            _add(own, arrive())
        of_sinks = None if sinks is None else kernels.sinks_gradient(partial, sinks, ring.first_sink, dout)
        return *(kernels.cast(x, q.dtype) for x in (dq, *own)), of_sinks, None


def _add(totals: Tensors, others: Tensors) -> None:
    for total, other in zip(totals, others, strict=True):
        kernels.add_(total, other)


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, group: Group, rule: AttentionRule, sinks: Sinks | None = None
) -> Tensor:
    """`kernels.attention` of a sequence of r s positions, of which member j holds the chunks j and 2r - 1 - j of 2r.

    q [s, b, n, d], k [s, b, g, d], v [s, b, g, e] -> [s, b, n * e], for the rank's queries. A mask is bool [b or 1, 1,
    s, r s]: this member's rows, columns in the sequence's own order; with one, `rule.causal` leaves no score out.
    First keys, int32 [b, s], and chosen keys, int32 [b, s, k], in the sequence's own numbers, act beside both. s is the
    length of a member's shard, r the number of members, b the batch, n heads, g key/value groups, d and e sizes of
    heads. In a group of one without sinks this is `kernels.attention`, or with chosen keys `kernels.sparse_attention`,
    which reads the chosen keys and the scale alone.

    Messages of one call: forward, r - 1 sends of the keys and of the values, s b g d and s b g e elements; backward, as
    many sends of the same again and of their gradients in float32. Each member computes its blocks in an order of its
    own, so the rounding of sums differs between members; a second run gives the same bits.
    """
    if group.size == 1 and sinks is None:
        if rule.chosen is not None:
            return kernels.sparse_attention(q, k, v, rule.chosen, rule.scale)
        return kernels.attention(q, k, v, rule)
    length = len(q) * group.size
    local = ContextLayout(ring=group.size).ring_positions(length, group.rank)
    scores = Scores.of(rule, local, local, length)
    values, first = (None, 0) if sinks is None else sinks
    return _RingAttention.apply(q, k, v, values, _Ring(group, scores, first))
