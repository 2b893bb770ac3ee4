"""A run of elements of a rank's part of a parameter, as boxes of the global array.

The distributed optimizer cuts flat buffers anywhere, in the middle of a row too. Checkpoints and conversion know boxes
(`parallel_core.sharding`), so that a state that one layout wrote can be read by any other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np

from parallel_core.buffers.layout import Entry, Span
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import Box, Place

Corner: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Stretch:
    """The elements start..stop-1, in row-major order, of the array that a rank holds of a parameter."""

    whole: Place
    """The place of the rank's array in the global one."""
    start: int
    stop: int

    @classmethod
    def of(cls, entry: Entry, owned: Span) -> "Stretch":
        """The stretch of the parameter `entry` that the span `owned` of its buffer covers. The span lies within the
        parameter."""
        return cls(entry.place, owned.start - entry.start, owned.stop - entry.start)

    @property
    def is_whole(self) -> bool:
        """Whether the stretch is all that the rank holds of the parameter."""
        return (self.start, self.stop) == (0, self.whole.size)

    @property
    def padding(self) -> int:
        """The number of its elements that are padding: in no box of the global array."""
        return self.stop - self.start - sum(box.size for box in self.place.boxes)

    @cached_property
    def _rows(self) -> tuple[int, int]:
        """The first row (an index of the array's first axis) that the stretch touches, and the one after the last."""
        row = prod(self.whole.shape[1:])
        return self.start // row, -(-self.stop // row)

    @cached_property
    def _corners(self) -> tuple[Corner, Corner]:
        """The smallest box of the rank's array that holds the stretch: its lowest and its highest corner."""
        boxes = list(_boxes(self.whole.shape, self.start, self.stop))
        return tuple(map(min, zip(*(low for low, _ in boxes), strict=True))), tuple(
            map(max, zip(*(high for _, high in boxes), strict=True))
        )

    @cached_property
    def place(self) -> Place:
        """The place in the global array of the smallest box of the rank's array that holds the stretch; elements of
        that box that are padding or outside of the stretch have no place."""
        first, last = self._corners
        pieces = (
            _piece(box, low, high, first)
            for low, high in _boxes(self.whole.shape, self.start, self.stop)
            for box in self.whole.boxes
        )
        shape = tuple(b - a for a, b in zip(first, last, strict=True))
        return Place(self.whole.spec, shape, tuple(piece for piece in pieces if piece is not None))

    @property
    def _is_whole_rows(self) -> bool:
        row = prod(self.whole.shape[1:])
        return self.start % row == self.stop % row == 0

    def to_array(self, values: Array) -> Array:
        """The values of the stretch, a vector, as the array that `place` describes; zero where that has other elements.
        A view of the values where the stretch is whole rows (indices of the first axis), else a copy."""
        if self._is_whole_rows:
            return values.reshape(self.place.shape)
        rows, inside = self._empty_rows(values.dtype)
        self._run_of(rows)[...] = values
        return np.array(rows[inside])

    def to_vector(self, array: Array) -> Array:
        """The values of the stretch, a vector, from the array that `place` describes. Where the stretch is whole rows
        (indices of the first axis) and the array C-contiguous, a view of it."""
        if self._is_whole_rows:
            return array.reshape(-1)
        rows, inside = self._empty_rows(array.dtype)
        rows[inside] = array
        return self._run_of(rows)

    def _empty_rows(self, dtype: np.dtype[Any]) -> tuple[Array, tuple[slice, ...]]:
        """Zeros for all rows that the stretch touches, and the slices of these rows in which the box of `place`
        lies."""
        first, last = self._rows
        low, high = self._corners
        shape = (last - first, *self.whole.shape[1:]) if self.whole.shape else ()
        origin = (first, *[0] * (len(low) - 1))
        inside = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=False))
        return np.zeros(shape, dtype), inside

    def _run_of(self, rows: Array) -> Array:
        before = self._rows[0] * prod(self.whole.shape[1:])
        return rows.reshape(-1)[self.start - before : self.stop - before]


def _boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[Corner, Corner]]:
    """The elements start..stop-1 in row-major order of an array of this shape as boxes, each by its lowest and its
    highest corner (exclusive)."""
    if len(shape) <= 1:
        yield ((start,), (stop,)) if shape else ((), ())
        return
    row = prod(shape[1:])
    full, end = -(-start // row), stop // row
    if full > end:  # The stretch lies within one row.
        yield from _in_row(end, shape, start, stop)
        return
    if start < full * row:
        yield from _in_row(full - 1, shape, start, full * row)
    if full < end:
        yield (full, *[0] * (len(shape) - 1)), (end, *shape[1:])
    if end * row < stop:
        yield from _in_row(end, shape, end * row, stop)


def _in_row(row: int, shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[Corner, Corner]]:
    before = row * prod(shape[1:])
    for low, high in _boxes(shape[1:], start - before, stop - before):
        yield (row, *low), (row + 1, *high)


def _piece(box: Box, low: Corner, high: Corner, origin: Corner) -> Box | None:
    """The part of `box` between the corners low and high (exclusive) of the rank's array, as a box of the global array
    that lies at `at`, counted from `origin`, of the smallest box around a stretch; None if that part is empty."""
    ends = tuple(a + n for a, n in zip(box.at, box.shape, strict=True))
    first, last = tuple(map(max, low, box.at)), tuple(map(min, high, ends))
    if any(a >= b for a, b in zip(first, last, strict=True)):
        return None
    return Box(
        start=tuple(s + f - a for s, f, a in zip(box.start, first, box.at, strict=True)),
        shape=tuple(b - a for a, b in zip(first, last, strict=True)),
        at=tuple(f - o for f, o in zip(first, origin, strict=True)),
    )
