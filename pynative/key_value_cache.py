"""Inputs of a forward for generation beside its tokens: earlier tokens' keys and values, the states of layers that have
those instead, and where the new ones stand.

A text lies in its row of a batch from position 0 on; a shorter one has padding behind it, which no token of its own
sees, and whose place its next tokens take. So texts of different lengths need no mask.

s sequence, b batch; S slots of a layer's cache, of which position p of a text has slot p modulo S.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.rotary import Rotary
from parallel_core.attention.score_form import ScoreForm
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.memory.arrays import array_type


class LayerCache:
    """Cache of a layer: tensors of earlier tokens [S, b, ...], such as keys and values.

    Args:
        slots: S. With fewer than there are positions, later tokens take the places of the earliest.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.kept: list[Tensor] = []

    def write(self, rows: Sequence[Tensor], positions: Array, lengths: Array) -> None:
        """Take over tensors [s, b, ...] of tokens at positions int32 [s, b]; lengths [b]: of the texts with them."""
        if not self.kept:
            self.kept = [_zeros((self.slots, *row.shape[1:]), row) for row in rows]
        stay = (positions < lengths) & (positions >= lengths - self.slots)
        slots = np.where(stay, positions % self.slots, -1).astype(np.int32)
        self.kept = [kernels.write_slots(kept, row, slots) for kept, row in zip(self.kept, rows, strict=True)]

    def ages(self, lengths: Array) -> Array:
        """The number of positions by which the tokens in the slots come before each text's last one, int32 [slots in
        use, b]; negative where there is none. lengths [b]: of the texts."""
        last = lengths.astype(np.int32) - 1
        ages = (last - np.arange(min(self.slots, lengths.max()), dtype=np.int32)[:, None]) % self.slots
        return np.where(ages <= last, ages, -1)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return from_numpy(np.zeros(shape, array_type(like.dtype)))


class Cache:
    """The caches of all layers of a rank, and where the tokens of the forward under way stand.

    Args:
        capacity: positions that a text can have.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.layers: dict[Hashable, LayerCache] = {}
        self._states: dict[tuple[int, str], Tensor] = {}
        self.positions = np.zeros((0, 0), np.int32)
        """int32 [s, b], of the tokens of the forward under way: of a first one the longest text's, then one of each."""
        self.lengths = np.zeros(0, np.int32)
        """int32 [b]: tokens of each text, those of the forward under way included."""
        self._angles: dict[Rotary, tuple[Tensor, Tensor]] = {}
        self._ages: dict[int, Array] = {}

    def begin(self, lengths: Array) -> None:
        """A forward begins, of texts [b] with so many tokens: of all of them or, behind another one, of the last."""
        first, self.lengths = not self.lengths.size, lengths.astype(np.int32)
        self.positions = _first_positions(self.lengths) if first else self.lengths[None] - 1
        self.continues = not first
        self._angles, self._ages = {}, {}

    continues = False
    """Whether the forward under way is of one token of each text, behind others."""

    def keep(self, layer: Hashable, form: ScoreForm, *rows: Tensor) -> Sequence[Tensor]:
        """Keep what the layer of this number, or a part of one, has of the new tokens, [s, b, ...] each -> that of all
        tokens: of a first forward the same, then [slots in use, b, ...]."""
        if layer not in self.layers:
            slots = self.capacity if form.window is None else min(self.capacity, form.window + 1)
            self.layers[layer] = LayerCache(slots)
        self.layers[layer].write(rows, self.positions, self.lengths)
        return [kept[: len(self.ages(layer))] for kept in self.layers[layer].kept] if self.continues else rows

    def state(self, layer: int, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """The state under a name that the layer of this number keeps of all earlier tokens; zeros at first."""
        kept = self._states.get((layer, name))
        return from_numpy(np.zeros(shape, dtype)) if kept is None else kept

    def keep_state(self, layer: int, name: str, state: Tensor) -> None:
        """Keep it, with the new tokens."""
        self._states[layer, name] = state

    def ages(self, layer: Hashable) -> Array:
        """See `LayerCache.ages`: the same array for all layers that keep equally much."""
        own = self.layers[layer]
        if own.slots not in self._ages:
            self._ages[own.slots] = own.ages(self.lengths)
        return self._ages[own.slots]

    def angles(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Cosine and sine [1, b, r] of the one new token's position in each text."""
        if rotary not in self._angles:
            places = tuple(range(p, p + 1) for p in self.positions[0].tolist())
            cos, sin = rotary.of_text(int(self.lengths.max())).tables(places)
            self._angles[rotary] = from_numpy(cos[None]), from_numpy(sin[None])
        return self._angles[rotary]


def _first_positions(lengths: Array) -> Array:
    return np.repeat(np.arange(lengths.max(), dtype=np.int32)[:, None], len(lengths), axis=1)


@dataclass(frozen=True)
class Generating:
    """A forward for generation."""

    cache: Cache | None
    """None: it is of whole texts."""


_under_way: Generating | None = None


def is_generating() -> bool:
    """Whether the forward under way is one for generation: experts then take all tokens."""
    return _under_way is not None


def current() -> Cache | None:
    """The cache of the forward under way, if it has one."""
    return None if _under_way is None else _under_way.cache


@contextmanager
def generating(cache: Cache | None) -> Iterator[None]:
    """Within the block forwards are for generation."""
    global _under_way
    before, _under_way = _under_way, Generating(cache)
    try:
        yield
    finally:
        _under_way = before
