"""Attention over a sequence that is cut over the context-parallel group: Ulysses (Jacobs et al., 2023) around the ring.

Before attention the ranks of the Ulysses group exchange shards of the sequence for heads, and back after it. Ulysses
alone, the ring alone and both together differ in the sizes of the two groups: one of a single rank exchanges nothing. s
the length of a rank's shard of the sequence, b batch, n heads, g key/value groups, d size of a query's and a key's
head, e of a value's, u ranks of the Ulysses group.
"""

import math
from dataclasses import replace

from mindspore import Tensor

from pynative import kernels
from pynative.collectives import Group
from pynative.context_parallel.ring import Sinks, ring_attention
from pynative.kernels.block import AttentionRule
from pynative.tape.autograd import Moved


def sequence_to_heads(q: Tensor, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    """q [s, b, n, d], k [s, b, g, d], v [s, b, g, e] -> [u s, b, n/u, d], [u s, b, g'/u, d], [u s, b, g'/u, e], the
    ranks' shards in order; s is the length of a shard, u the number of ranks, n query heads, g key/value heads, d and e
    sizes of heads. A group of one returns q, k and v.

    g' = lcm(g, u): where g is no multiple of u, each key/value head is repeated g'/g times, so that every rank has
    those of its query heads; the copies' gradients are added up. u must divide n.

    Messages of one call between several ranks: one all-to-all forward and one backward, of s b (n d + g' (d + e))
    elements a rank each, of which a rank keeps 1/u.
    """
    if group.size == 1:
        return q, k, v
    size, groups, once = group.size, k.shape[2], (1, 1, 1)
    copies = math.lcm(groups, size) // groups
    times, shapes = (1, copies, copies), [x.shape[2:] for x in (q, k, v)]
    own = [(n * count // size, d) for (n, d), count in zip(shapes, times, strict=True)]
    return Moved.apply(
        q,
        k,
        v,
        lambda *xs: kernels.unpack_heads(group.all_to_all(kernels.pack_heads(xs, size, times)), 1, own, once),
        lambda *ds: kernels.unpack_heads(group.all_to_all(kernels.pack_heads(ds, 1, once)), size, shapes, times),
    )


def heads_to_sequence(x: Tensor, group: Group) -> Tensor:
    """x [u s, b, n/u * e], this rank's n/u heads of the shards of all u ranks -> [s, b, n * e], all heads of its own
    shard: the reverse of `sequence_to_heads`, for attention's output with e channels a head. A group of one returns x.

    Messages of one call between several ranks: one all-to-all forward and one backward, of s b n e elements a rank
    each, of which a rank keeps 1/u.
    """
    size, width = group.size, x.shape[-1] * group.size
    return (
        x
        if size == 1
        else Moved.apply(
            x,
            lambda x: kernels.unpack_heads(group.all_to_all(x), size, ((width,),), (1,))[0],
            lambda dy: group.all_to_all(kernels.pack_heads((dy,), size, (1,))),
        )
    )


def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ulysses_group: Group,
    ring_group: Group,
    rule: AttentionRule,
    sinks: Tensor | None = None,
) -> Tensor:
    """`kernels.attention` over the whole sequence, for this rank's shard of it: q [s, b, n, d], k [s, b, g, d] and v
    [s, b, g, e] -> [s, b, n * e]; s the length of a shard, n heads, g key/value groups, d and e sizes of heads.

    The rule's mask, bool [b or 1, 1, rows, whole sequence], first keys, int32 [b, rows], and chosen keys, [b, rows, k],
    have a row for each query that attends on this rank (`ContextShard.queries`); its head_offset is the number of the
    rank's first head among all tensor-parallel ranks'. sinks: [n], of these heads, see `kernels.with_sinks`.

    The messages are those of `sequence_to_heads`, `ring_attention` and `heads_to_sequence`.
    """
    first = ulysses_group.rank * (q.shape[2] // ulysses_group.size)
    heads = sequence_to_heads(q, k, v, ulysses_group)
    given = replace(rule, head_offset=rule.head_offset + first)
    out = ring_attention(*heads, ring_group, given, None if sinks is None else Sinks(sinks, first))
    return heads_to_sequence(out, ulysses_group)
