"""Documents that share a row of a batch, by the first position of each position's document.

b rows, s length of a sequence.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Starts = NDArray[np.int32]
"""[..., s]: for each position the number of the first position of its document; a document's positions follow one
another."""


def starts_after(is_end: NDArray[np.bool_]) -> Starts:
    """Document starts, int32 [..., s] (for each position the number of the first position of its document), from bool
    [..., s]: whether a position is the last of its document."""
    starts = np.zeros(is_end.shape, np.int32)
    starts[..., 1:] = np.where(is_end[..., :-1], np.arange(1, is_end.shape[-1]), 0)
    return np.maximum.accumulate(starts, axis=-1)


def wrong_starts(starts: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Whether each of a script's document starts [b, s] is wrong, bool [b, s]: neither the position's own number nor
    the start that the position before has."""
    wrong = starts != np.arange(starts.shape[-1])
    wrong[:, 1:] &= starts[:, 1:] != starts[:, :-1]
    return np.asarray(wrong)


def dense_mask(starts: Starts) -> NDArray[np.bool_]:
    """An attention mask [b, 1, s, s] from document starts [b, s]: True where the query is of another document than the
    key or comes before it."""
    causal = np.tri(starts.shape[-1], dtype=bool)
    return np.asarray(~(causal & (starts[:, :, None] == starts[:, None, :]))[:, None])


def ends_in_rows(starts: Starts) -> tuple[int, ...]:
    """For each document of starts [b, s], row after row, the number of positions up to its end, its own and those of
    all documents and rows before: the cumulative lengths that fused operators take."""
    is_first = starts == np.arange(starts.shape[-1], dtype=np.int32)
    firsts = np.flatnonzero(is_first)
    return (*map(int, firsts[1:]), starts.size)
