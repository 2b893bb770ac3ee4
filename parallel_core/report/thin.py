"""Curves of as many points as a screen shows."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from parallel_core.numerics.dtypes import Array

BINS = 800
"""Bins of a curve: twice as many points, which is about the number of a wide screen's pixels."""


def thinned(values: Array, bins: int = BINS) -> Array:
    """Indices, rising, of the smallest and the largest of `values` [n] in each of as many bins, and of the first and
    last; all of them if they are not more. So each spike stays. A bin without a finite value keeps one, a gap."""
    if len(values) <= 2 * bins:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), bins + 1).astype(int)
    low, high = np.where(np.isfinite(values), values, np.inf), np.where(np.isfinite(values), values, -np.inf)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(kept))


def means(values: Array, bins: int) -> Array:
    """[rows, bins]: the mean of the finite values [rows, n] in each of as many bins of columns; none is no number."""
    edges = np.linspace(0, values.shape[1], bins + 1).astype(int)[:-1]
    finite = np.isfinite(values)
    count = np.add.reduceat(finite, edges, axis=1, dtype=int)
    total = np.add.reduceat(np.where(finite, values, 0.0), edges, axis=1)
    return np.where(count, total / np.maximum(count, 1), np.nan)


def plain(values: Iterable[float], digits: int = 6) -> list[float | None]:
    """Rounded for JSON, which has no infinities and no NaN: those are gaps."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
