"""Attention over a sequence that is cut over the context-parallel group: Ulysses around the ring.

Either may be in a group of one, where it does nothing: the three algorithms are two functions and two group sizes.
"""

from typing import Any

from mindspore import Tensor

from pynative.collectives import Group
from pynative.context_parallel.ring import ring_attention
from pynative.context_parallel.ulysses import heads_to_sequence, sequence_to_heads


def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ulysses_group: Group,
    ring_group: Group,
    *,
    head_offset: int = 0,
    **setting: Any,
) -> Tensor:
    """`kernels.attention` of the whole sequence: q [s, b, n, d], k [s, b, g, d], v [s, b, g, e] -> [s, b, n * e].

    s is the length of this rank's shard of it (`parallel_core.context`). mask: bool [b or 1, 1, rows, whole sequence],
    the rows that `ContextShard.queries` leaves, as of first_keys, int32 [b, rows]. head_offset: number of the rank's
    first head among all tensor-parallel ranks'.
    setting: the other keyword arguments of `kernels.attention`, as they are.
    The messages are those of `sequence_to_heads`, `ring_attention` and `heads_to_sequence`.
    """
    first_head = head_offset + ulysses_group.rank * (q.shape[2] // ulysses_group.size)
    heads = sequence_to_heads(q, k, v, ulysses_group)
    return heads_to_sequence(ring_attention(*heads, ring_group, head_offset=first_head, **setting), ulysses_group)
