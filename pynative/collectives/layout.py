"""Parts of flat arrays: spans of limited size, each rank's rows, and the order of parts along an axis."""

from collections.abc import Sequence

import numpy as np

from parallel_core.buffers.layout import Span
from parallel_core.numerics.dtypes import Array


def spans(count: int, largest: int) -> list[Span]:
    """The consecutive spans, from 0, that cut `count` entries in parts of `largest`, the last perhaps shorter; one
    empty span for a count of 0."""
    return [Span(start, min(start + largest, count)) for start in range(0, max(count, 1), largest)]


def window(part: Span, k: int, largest: int) -> Span:
    """The k-th span (from 0) of `largest` entries within `part`, as a span of the same array; short or empty at the
    part's end."""
    return Span(min(part.start + k * largest, part.stop), min(part.start + (k + 1) * largest, part.stop))


def split_axis(array: Array, axis: int, size: int) -> Array:
    """A flat array of the `size` equal parts along `axis`, one part after the other."""
    if axis:
        array = np.concatenate(np.split(array, size, axis), axis=None)
    return array.reshape(-1)


def join_axis(parts: Array, shape: Sequence[int], axis: int) -> Array:
    """Undo `split_axis`: concatenate, along `axis`, the arrays of this shape that the rows of `parts` [ranks, entries]
    hold."""
    if axis == 0:
        return parts.reshape(len(parts) * shape[0], *shape[1:])
    return np.concatenate([part.reshape(shape) for part in parts], axis=axis)


def row_parts(rows: Sequence[int], row: int) -> list[Span]:
    """The span of each rank's rows in a flat array, in which the ranks' rows follow one another from entry 0 on:
    rows[i] of them are rank i's, each of `row` entries."""
    ends = np.cumsum(rows) * row
    return [Span(int(end) - count * row, int(end)) for end, count in zip(ends, rows, strict=True)]
