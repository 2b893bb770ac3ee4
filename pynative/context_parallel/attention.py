"""Attention over a sequence that is cut over the context-parallel group: Ulysses around the ring.

Either may be in a group of one, where it does nothing: the three algorithms are two functions and two group sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindspore import Tensor

from parallel_core.context import ContextLayout, Ranges
from pynative import parallel_state
from pynative.collectives import Group
from pynative.context_parallel.ring import ring_attention
from pynative.context_parallel.ulysses import heads_to_sequence, sequence_to_heads
from pynative.kernels.dropout import Key


@dataclass(frozen=True)
class ContextParallel:
    """The groups of a job's context parallelism, and which positions this rank holds."""

    layout: ContextLayout
    rank: int
    """This rank's place in the context-parallel group."""
    ulysses_group: Group
    ring_group: Group

    @classmethod
    def of(cls, parallel_config) -> ContextParallel:
        """The groups of `parallel_state` under --context-parallel-algo."""
        layout = ContextLayout.of(
            parallel_config.context_parallel_size,
            parallel_config.context_parallel_algo,
            parallel_config.ulysses_degree_in_cp,
        )
        group, backend = parallel_state.get_context_parallel_group(), parallel_state.get_backend()
        first, inside = group.rank - group.rank % layout.ulysses, group.rank % layout.ulysses
        block, strided = group.ranks[first : first + layout.ulysses], group.ranks[inside :: layout.ulysses]
        return cls(layout, group.rank, backend.group(block, "cp_ulysses"), backend.group(strided, "cp_ring"))

    def positions(self, held: int) -> Ranges:
        """Where the `held` positions of a sequence that are here stand in it."""
        return self.layout.positions(held * self.layout.size, self.rank)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        causal: bool = True,
        mask: Tensor | None = None,
        dropout_rate: float = 0.0,
        dropout_key: Key | None = None,
        head_offset: int = 0,
    ) -> Tensor:
        """`kernels.attention` of the whole sequence: q [s, b, n, d], k and v [s, b, g, d] -> [s, b, n * d].

        s is what this rank holds. mask: bool [b or 1, 1, rows, whole sequence], the rows of `batch.cut_mask_rows`.
        head_offset: number of this rank's first head among all tensor-parallel ranks' heads.
        """
        own_heads = q.shape[2] // self.ulysses_group.size
        q, k, v = sequence_to_heads(q, k, v, self.ulysses_group)
        out = ring_attention(
            q, k, v, self.ring_group, scale=scale, causal=causal, mask=mask, dropout_rate=dropout_rate,
            dropout_key=dropout_key, head_offset=head_offset + self.ulysses_group.rank * own_heads,
        )  # fmt: skip
        return heads_to_sequence(out, self.ulysses_group)
