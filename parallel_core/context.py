"""The shards of sequences over ranks (context and sequence parallelism), and the scores that a ring member computes.

`SequenceLayout` says which part of the sequence a rank has: context parallelism cuts every sequence, and sequence
parallelism (--sequence-parallel) cuts a context-parallel rank's shard again outside of the tensor-parallel regions.
`ContextLayout` is its first half:

The c ranks of a context-parallel group are c = u r: blocks of u neighbours exchange heads (Ulysses, Jacobs et al.,
2023), and r such blocks form a ring around which keys and values travel (Liu et al., 2023). The algorithms differ in
the two degrees alone:

    megatron_cp_algo   u = 1, r = c
    ulysses_cp_algo    u = c, r = 1
    hybrid_cp_algo     u = --ulysses-degree-in-cp, r = c / u

A member j of the ring attends with chunks j and 2r - 1 - j of the sequence's 2r ("zigzag"): with a causal mask an early
chunk sees little and its late partner much, so that all members multiply equally many scores. The u ranks of a block
have consecutive shards of these two chunks, so that what the inner all-to-all puts together is the ring member's shard
in order. With r = 1 that is the sequence itself, cut into consecutive shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from parallel_core.numerics.dtypes import Array
from parallel_core.sizes import HYBRID, RING, ULYSSES

Ranges = tuple[range, ...]
"""Global positions as consecutive runs, in the order in which they are stored on a rank."""


def cut(ranges: Sequence[range], start: int, stop: int) -> Ranges:
    """The positions at places start..stop-1 of the concatenated `ranges`, all of step 1, as ranges again; neighbours
    that touch become one."""
    runs: list[range] = []
    for positions in ranges:
        inside = positions[max(start, 0) : max(stop, 0)]
        start, stop = start - len(positions), stop - len(positions)
        if inside and runs and runs[-1].stop == inside.start:
            runs[-1] = range(runs[-1].start, inside.stop)
        elif inside:
            runs.append(inside)
    return tuple(runs)


def as_array(ranges: Ranges) -> Array:
    """The positions of the ranges, at least one and all of step 1, one by one, int32 [s]."""
    return np.concatenate([np.arange(run.start, run.stop, dtype=np.int32) for run in ranges])


class Run(NamedTuple):
    """Neighbouring tokens of a rank's shard whose positions in the sequence are neighbours, too. rows: their places in
    the shard; positions: those in the whole sequence."""

    rows: range
    """Places of the tokens in the rank's shard."""
    positions: range
    """Positions of the tokens in the whole sequence."""

    def parts(self, size: int) -> "list[Run]":
        """The tokens of this run in order, as runs of at most `size` tokens."""
        return [
            Run(self.rows[start : start + size], self.positions[start : start + size])
            for start in range(0, len(self.rows), size)
        ]


def runs(positions: Ranges, size: int) -> list[Run]:
    """The tokens of a shard, whose global positions are given, in runs of at most `size` tokens."""
    found, start = list[Run](), 0
    for run in positions:
        found += Run(range(start, start + len(run)), run).parts(size)
        start += len(run)
    return found


@dataclass(frozen=True)
class ContextLayout:
    """The layout of a sequence over the ranks of a context-parallel group: `ulysses` neighbouring ranks, a block,
    exchange heads, and `ring` such blocks form a ring; rank = place in the ring x ulysses + place in the block."""

    ulysses: int = 1
    """u: neighbouring ranks that exchange heads."""
    ring: int = 1
    """r: number of members of the ring."""

    @classmethod
    def of(cls, size: int, algorithm: str | None = None, ulysses_degree: int | None = None) -> "ContextLayout":
        """The layout of `size` ranks; algorithm: --context-parallel-algo, None for the ring. ulysses_degree: ranks
        that exchange heads, None for 1; read by hybrid_cp_algo of two ranks or more alone. Raises ValueError for
        an unknown algorithm, AssertionError for a degree that does not divide `size`."""
        degrees = {RING: 1, ULYSSES: size, HYBRID: (size > 1 and ulysses_degree) or 1}
        if (algorithm or RING) not in degrees:
            raise ValueError(f"--context-parallel-algo {algorithm}: must be one of {', '.join(degrees)}; change it")
        degree = degrees[algorithm or RING]
        assert size % degree == 0, f"{size} context-parallel ranks don't form blocks of {degree}"
        return cls(degree, size // degree)

    @property
    def size(self) -> int:
        """Number of ranks of the context-parallel group: ulysses x ring."""
        return self.ulysses * self.ring

    @property
    def divisor(self) -> int:
        """The number by which the length of a sequence must be divisible: ulysses x ring, twice that if ring > 1."""
        return self.size * (2 if self.ring > 1 else 1)

    def ring_positions(self, seq_length: int, place: int) -> Ranges:
        """Positions with which the ring's member `place` attends: chunks `place` and 2r - 1 - `place` of the 2r chunks
        of a sequence, in a ring of r members; with r = 1 the whole sequence. seq_length: a multiple of 2r, unless
        r = 1."""
        if self.ring == 1:
            return (range(seq_length),)
        assert seq_length % (2 * self.ring) == 0, f"{seq_length} positions don't form {2 * self.ring} chunks"
        chunk = seq_length // (2 * self.ring)
        early, late = place * chunk, (2 * self.ring - 1 - place) * chunk
        return cut((range(early, early + chunk), range(late, late + chunk)), 0, 2 * chunk)

    def positions(self, seq_length: int, rank: int) -> Ranges:
        """The positions in the whole sequence of the tokens that the context-parallel rank `rank` holds, in the order
        in which it holds them. seq_length: a multiple of `divisor`."""
        assert seq_length % self.size == 0, f"{seq_length} positions don't cut into {self.size} shards"
        place, inside = divmod(rank, self.ulysses)
        length = seq_length // self.size
        return cut(self.ring_positions(seq_length, place), inside * length, (inside + 1) * length)

    def order(self, seq_length: int) -> Array:
        """Global positions [s] of the ranks' shards one after another: whole[order] is the shards in the order of the
        ranks."""
        return as_array(tuple(run for rank in range(self.size) for run in self.positions(seq_length, rank)))

    def to_whole(self, shards: Array, axis: int = 0) -> Array:
        """The sequence in its own order, from the ranks' shards one after another along `axis`."""
        return shards.take(np.argsort(self.order(shards.shape[axis])), axis)


class SequenceSizes(Protocol):
    """The options of a ParallelConfig that cut the sequence."""

    context_parallel_size: int
    context_parallel_algo: str
    ulysses_degree_in_cp: int | None
    tensor_model_parallel_size: int
    sequence_parallel: bool


@dataclass(frozen=True)
class SequenceLayout:
    """The layout of the sequence axis of hidden states [s, b, h] over context- and tensor-parallel ranks. context: its
    cut over the context-parallel group; tensor: the number of tensor-parallel ranks over which a context-parallel
    rank's shard is cut again, 1 without --sequence-parallel and inside of the tensor-parallel regions."""

    context: ContextLayout = ContextLayout()
    """The cut over the context-parallel group, everywhere in the model."""
    tensor: int = 1
    """The number of tensor-parallel ranks over which the context-parallel rank's shard is cut again: all with
    --sequence-parallel (Korthikanti et al., 2022), outside of the tensor-parallel regions; else 1: each of them has
    that whole shard."""

    @classmethod
    def of(cls, parallel: SequenceSizes) -> "SequenceLayout":
        """The layout outside of the tensor-parallel regions, as a configuration asks for it."""
        context = ContextLayout.of(
            parallel.context_parallel_size, parallel.context_parallel_algo, parallel.ulysses_degree_in_cp
        )
        return cls(context, parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1)

    @property
    def gathered(self) -> "SequenceLayout":
        """The layout inside of a tensor-parallel region: only context parallelism cuts."""
        return SequenceLayout(self.context)

    @property
    def size(self) -> int:
        """Number of shards of a sequence that differ: the context-parallel size times `tensor`."""
        return self.context.size * self.tensor

    def local_length(self, seq_length: int) -> int:
        """Number of positions of a rank's shard of a sequence of `seq_length`, a multiple of `size`."""
        assert seq_length % self.size == 0, f"{seq_length} positions don't cut into {self.size} shards"
        return seq_length // self.size

    def positions(self, length: int, context_rank: int, tensor_rank: int) -> Ranges:
        """The positions in the whole sequence of the tokens that a rank holds, in the order in which it holds them.
        length: the number of tokens of the rank's shard (`local_length`), not of the sequence."""
        start = tensor_rank % self.tensor * length  # ranks that don't cut have the same shard
        return cut(self.context.positions(length * self.size, context_rank), start, start + length)


class Block(NamedTuple):
    """The scores that a member of the ring computes in one step: of one or both of its query chunks with one or both of
    the key chunks that it holds in that step (`query_chunks` and `key_chunks`: 1 or 2). A single query chunk is the
    late one, a single key chunk the early one, since late queries see early keys. causal: whether scores above the
    diagonal are left out."""

    query_chunks: int
    """Number of the member's query chunks: 1, the late one alone, or 2."""
    key_chunks: int
    """Number of key chunks: 1, the early one alone, or 2."""
    causal: bool
    """Whether scores above the diagonal are left out."""


def ring_block(place: int, source: int, causal: bool = True) -> Block:
    """The block of scores that the ring's member `place` computes with the keys of member `source`.

    causal: whether scores with later keys are left out. If False every score is computed.
    """
    if not causal:
        return Block(2, 2, causal=False)
    if source == place:
        return Block(2, 2, causal=True)
    return Block(2, 1, causal=False) if source < place else Block(1, 2, causal=False)
