"""Attention over a sequence that is cut over the context-parallel group: Ulysses around the ring.

Either may be in a group of one, where it does nothing: the three algorithms are two functions and two group sizes.
"""

from dataclasses import replace

from mindspore import Tensor

from pynative.collectives import Group
from pynative.context_parallel.ring import ring_attention
from pynative.context_parallel.ulysses import heads_to_sequence, sequence_to_heads
from pynative.kernels.block import AttentionRule


def context_parallel_attention(
    q: Tensor, k: Tensor, v: Tensor, ulysses_group: Group, ring_group: Group, rule: AttentionRule
) -> Tensor:
    """`kernels.attention` of the whole sequence: q [s, b, n, d], k [s, b, g, d], v [s, b, g, e] -> [s, b, n * e].

    s is the length of this rank's shard of it (`parallel_core.context`). Of the rule the mask, bool [b or 1, 1, rows,
    whole sequence], and the first keys, int32 [b, rows], have the rows that `ContextShard.queries` leaves; head_offset
    is the number of the rank's first head among all tensor-parallel ranks'.
    The messages are those of `sequence_to_heads`, `ring_attention` and `heads_to_sequence`.
    """
    first_head = rule.head_offset + ulysses_group.rank * (q.shape[2] // ulysses_group.size)
    heads = sequence_to_heads(q, k, v, ulysses_group)
    out = ring_attention(*heads, ring_group, replace(rule, head_offset=first_head))
    return heads_to_sequence(out, ulysses_group)
