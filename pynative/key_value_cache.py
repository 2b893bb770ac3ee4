"""The key/value cache of generation: earlier tokens' keys and values, the states of layers that keep a state instead,
and the positions of the forward's new tokens.

A text lies in its row of a batch from position 0 on; a shorter one has padding behind it, which no token of its own
sees, and whose place its next tokens take. So texts of different lengths need no mask. s sequence, b batch; S slots of
a layer's cache: position p of a text lies in slot p modulo S.
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
    """The cache of one layer: its tensors of the tokens written, such as keys and values, each [S, b, ...] (`kept`,
    empty before the first `write`).

    Args:
        slots: S. If a text has more positions than slots, later tokens take the places of the earliest.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.kept: list[Tensor] = []

    def write(self, rows: Sequence[Tensor], positions: Array, lengths: Array) -> None:
        """Write the new tokens' tensors, each [s, b, ...], into their slots. positions: int32 [s, b]; lengths: [b],
        each text's tokens, the new ones included. Padding, and tokens before a text's last S, are not written.
        """
        if not self.kept:
            self.kept = [_zeros((self.slots, *row.shape[1:]), row) for row in rows]
        stay = (positions < lengths) & (positions >= lengths - self.slots)
        slots = np.where(stay, positions % self.slots, -1).astype(np.int32)
        self.kept = [kernels.write_slots(kept, row, slots) for kept, row in zip(self.kept, rows, strict=True)]

    def ages(self, lengths: Array) -> Array:
        """The age of the token in each slot, int32 [min(S, longest text), b]: positions by which it comes before its
        text's last token; -1 where the slot holds none. lengths: [b], each text's tokens."""
        last = lengths.astype(np.int32) - 1
        ages = (last - np.arange(min(self.slots, lengths.max()), dtype=np.int32)[:, None]) % self.slots
        return np.where(ages <= last, ages, -1)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return from_numpy(np.zeros(shape, array_type(like.dtype)))


class Cache:
    """The caches of all layers of a rank, and the positions of the new tokens of the forward under way.

    Args:
        capacity: the largest number of positions that a text can have.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.layers: dict[Hashable, LayerCache] = {}
        self._states: dict[tuple[int, str], Tensor] = {}
        self.positions = np.zeros((0, 0), np.int32)
        """int32 [s, b], positions of the forward's new tokens: in the first forward s is the longest text's length,
        then 1."""
        self.lengths = np.zeros(0, np.int32)
        """int32 [b]: tokens of each text, those of the forward under way included."""
        self._angles: dict[Rotary, tuple[Tensor, Tensor]] = {}
        self._ages: dict[int, Array] = {}

    def begin(self, lengths: Array) -> None:
        """Begin a forward of texts that have `lengths` [b] tokens with the new ones: the first forward takes all
        tokens, each later one the last token of every text."""
        first, self.lengths = not self.lengths.size, lengths.astype(np.int32)
        self.positions = _first_positions(self.lengths) if first else self.lengths[None] - 1
        self.continues = not first
        self._angles, self._ages = {}, {}

    continues = False
    """Whether the forward under way has one new token of each text, after an earlier forward."""

    def keep(self, layer: Hashable, form: ScoreForm, *rows: Tensor) -> Sequence[Tensor]:
        """Write the new tokens' tensors of a layer, each [s, b, ...]. Return, in the first forward, `rows` itself,
        in later forwards all that the cache holds of the layer, each [slots in use, b, ...], in the slots' order.

        layer: its number, or another key for a part of a layer. form: in the layer's first call its window, if any,
        bounds the slots to window + 1.
        """
        if layer not in self.layers:
            slots = self.capacity if form.window is None else min(self.capacity, form.window + 1)
            self.layers[layer] = LayerCache(slots)
        self.layers[layer].write(rows, self.positions, self.lengths)
        return [kept[: len(self.ages(layer))] for kept in self.layers[layer].kept] if self.continues else rows

    def state(self, layer: int, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        """The state that the layer of this number last kept under `name` (`keep_state`); zeros of `shape` and `dtype`
        if it kept none."""
        kept = self._states.get((layer, name))
        return from_numpy(np.zeros(shape, dtype)) if kept is None else kept

    def keep_state(self, layer: int, name: str, state: Tensor) -> None:
        """Keep a layer's state after all tokens so far, the new ones included, under `name`; the method `state` returns
        it in the next forward."""
        self._states[layer, name] = state

    def ages(self, layer: Hashable) -> Array:
        """The age of the token in each slot of the layer's cache, int32 [slots in use, b]: positions by which it comes
        before its text's last token; -1 where the slot holds none. Layers with equally many slots share one array."""
        own = self.layers[layer]
        if own.slots not in self._ages:
            self._ages[own.slots] = own.ages(self.lengths)
        return self._ages[own.slots]

    def angles(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Cosine and sine, times the embedding's magnitude, each [1, b, r] (r: rotated features), at the position of
        each text's one new token in a forward after the first. The rotary embedding is that for the longest text's
        length."""
        if rotary not in self._angles:
            places = tuple(range(p, p + 1) for p in self.positions[0].tolist())
            cos, sin = rotary.of_text(int(self.lengths.max())).tables(places)
            self._angles[rotary] = from_numpy(cos[None]), from_numpy(sin[None])
        return self._angles[rotary]


def _first_positions(lengths: Array) -> Array:
    return np.repeat(np.arange(lengths.max(), dtype=np.int32)[:, None], len(lengths), axis=1)


@dataclass(frozen=True)
class Generating:
    """The setting of `generating`: forwards are for generation, with a cache or without."""

    cache: Cache | None
    """The cache; None: forwards keep nothing."""


_under_way: Generating | None = None


def is_generating() -> bool:
    """Whether the forward under way is for generation (within `generating`), in which `TopKRouter` drops no
    token."""
    return _under_way is not None


def current() -> Cache | None:
    """The cache that `generating` was given; None outside of `generating`, and if it was given None."""
    return None if _under_way is None else _under_way.cache


@contextmanager
def generating(cache: Cache | None) -> Iterator[None]:
    """Make forwards within the block forwards for generation: with this cache, or without one if it is None."""
    global _under_way
    before, _under_way = _under_way, Generating(cache)
    try:
        yield
    finally:
        _under_way = before
