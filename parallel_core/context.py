"""Which positions of a sequence a context-parallel rank holds, and which scores it computes.

The c ranks of a context-parallel group are c = u r: blocks of u neighbours exchange heads (Ulysses, Jacobs et al.,
2023), and r such blocks form a ring around which keys and values travel (Liu et al., 2023). The algorithms differ in
the two degrees alone:

    megatron_cp_algo   u = 1, r = c
    ulysses_cp_algo    u = c, r = 1
    hybrid_cp_algo     u = --ulysses-degree-in-cp, r = c / u

A member j of the ring attends with chunks j and 2r - 1 - j of the sequence's 2r ("zigzag"): with a causal mask an early
chunk sees little and its late partner much, so that all members multiply equally many scores. The u ranks of a block
hold consecutive pieces of these two chunks, so that what the inner all-to-all puts together is the ring's piece in
order. With r = 1 that is the sequence itself, cut into consecutive pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RING, ULYSSES, HYBRID = "megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo"

Ranges = tuple[range, ...]
"""Positions as consecutive runs, in the order in which a rank holds them."""


def cut(ranges: Sequence[range], start: int, stop: int) -> Ranges:
    """Places start to stop of the positions in `ranges`, as ranges again; neighbours that touch become one."""
    pieces: list[range] = []
    for positions in ranges:
        inside = positions[max(start, 0) : max(stop, 0)]
        start, stop = start - len(positions), stop - len(positions)
        if inside and pieces and pieces[-1].stop == inside.start:
            pieces[-1] = range(pieces[-1].start, inside.stop)
        elif inside:
            pieces.append(inside)
    return tuple(pieces)


@dataclass(frozen=True)
class ContextLayout:
    """How a sequence lies over the ranks of a context-parallel group; rank = ring place x ulysses + place in block."""

    ulysses: int = 1
    """u: neighbours that exchange heads."""
    ring: int = 1
    """r: members of the ring."""

    @classmethod
    def of(cls, size: int, algorithm: str | None = None, ulysses_degree: int | None = None) -> ContextLayout:
        """The layout of `size` ranks; algorithm: --context-parallel-algo, None for the ring; ValueError if unknown."""
        degrees = {RING: 1, ULYSSES: size, HYBRID: ulysses_degree or 1}
        if (algorithm or RING) not in degrees:
            raise ValueError(f"--context-parallel-algo {algorithm}: must be one of {', '.join(degrees)}; change it")
        degree = degrees[algorithm or RING]
        assert size % degree == 0, f"{size} context-parallel ranks don't form blocks of {degree}"
        return cls(degree, size // degree)

    @property
    def size(self) -> int:
        """Ranks of the context-parallel group."""
        return self.ulysses * self.ring

    def ring_positions(self, seq_length: int, place: int) -> Ranges:
        """What the ring's member `place` attends with: chunks `place` and 2r - 1 - `place` of 2r."""
        if self.ring == 1:
            return (range(seq_length),)
        assert seq_length % (2 * self.ring) == 0, f"{seq_length} positions don't form {2 * self.ring} chunks"
        chunk = seq_length // (2 * self.ring)
        early, late = place * chunk, (2 * self.ring - 1 - place) * chunk
        return cut((range(early, early + chunk), range(late, late + chunk)), 0, 2 * chunk)

    def positions(self, seq_length: int, rank: int) -> Ranges:
        """What a rank holds, in local order."""
        assert seq_length % self.size == 0, f"{seq_length} positions don't cut into {self.size} pieces"
        place, inside = divmod(rank, self.ulysses)
        piece = seq_length // self.size
        return cut(self.ring_positions(seq_length, place), inside * piece, (inside + 1) * piece)

    def order(self, seq_length: int) -> np.ndarray:
        """The ranks' positions one after another: whole[order] is the ranks' pieces, in the order of the ranks."""
        ranges = [run for rank in range(self.size) for run in self.positions(seq_length, rank)]
        return np.concatenate([np.arange(run.start, run.stop) for run in ranges])

    def to_whole(self, pieces: np.ndarray, axis: int = 0) -> np.ndarray:
        """The ranks' pieces one after another along `axis` -> the sequence in its own order."""
        return pieces.take(np.argsort(self.order(pieces.shape[axis])), axis)


class Block(NamedTuple):
    """The scores of one step around the ring: a rectangle of the member's two query chunks and two key chunks.

    Queries are the last ones and keys the first, since early keys are what late queries see.
    """

    query_chunks: int
    """1: the late chunk's queries alone; 2: all."""
    key_chunks: int
    """1: the early chunk's keys alone; 2: all."""
    causal: bool
    """Whether scores above the diagonal are left out."""


def ring_block(place: int, source: int, causal: bool = True) -> Block:
    """What the ring's member `place` computes with the keys of member `source`.

    causal: without, every score is needed (an explicit mask makes scores -10000 instead of leaving them out).
    """
    if not causal:
        return Block(2, 2, causal=False)
    if source == place:
        return Block(2, 2, causal=True)
    return Block(2, 1, causal=False) if source < place else Block(1, 2, causal=False)
