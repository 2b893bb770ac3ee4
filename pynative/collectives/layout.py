"""Places of parts in flat arrays: cut into parts, into posts, along an axis, by rows."""

from collections.abc import Sequence

import numpy as np

from parallel_core.buffers.layout import Span
from parallel_core.numerics.dtypes import Array


def spans(count: int, largest: int) -> list[Span]:
    """`count` entries in spans of at most `largest`; one empty span if there are none."""
    return [Span(start, min(start + largest, count)) for start in range(0, max(count, 1), largest)]


def window(part: Span, k: int, largest: int) -> Span:
    """The k-th stretch of `largest` entries of a part, short or empty at its end."""
    return Span(min(part.start + k * largest, part.stop), min(part.start + (k + 1) * largest, part.stop))


def split_axis(array: Array, axis: int, size: int) -> Array:
    """`size` equal parts along `axis`, one after the other, flat."""
    if axis:
        array = np.concatenate(np.split(array, size, axis), axis=None)
    return array.reshape(-1)


def join_axis(parts: Array, shape: Sequence[int], axis: int) -> Array:
    """Undo `split_axis`: row i of `parts` holds rank i's array of that shape."""
    if axis == 0:
        return parts.reshape(len(parts) * shape[0], *shape[1:])
    return np.concatenate([part.reshape(shape) for part in parts], axis=axis)


def row_parts(rows: Sequence[int], row: int) -> list[Span]:
    """Places of each rank's rows, of `row` entries, in the flat array."""
    ends = np.cumsum(rows) * row
    return [Span(int(end) - count * row, int(end)) for end, count in zip(ends, rows, strict=True)]
