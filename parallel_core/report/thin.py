"""Curves reduced to about as many points as a screen shows, and values for JSON."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from parallel_core.numerics.dtypes import Array

BINS = 800
"""Bins of a curve, which has at most two points a bin and its two ends."""


def thinned(values: Array, bins: int = BINS) -> Array:
    """Indices, rising, of the points of `values` [n] to draw: in each of `bins` bins the smallest and the largest
    finite value, or the bin's first point, a gap, if it has none; also the first and the last of the n points. All n if
    they are at most 2 `bins`."""
    if len(values) <= 2 * bins:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), bins + 1).astype(int)
    low, high = np.where(np.isfinite(values), values, np.inf), np.where(np.isfinite(values), values, -np.inf)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    return np.array(sorted(kept))


def means(values: Array, bins: int) -> Array:
    """The mean [rows, bins] of the finite values among `values` [rows, n] in each of `bins` bins of neighbouring
    columns; NaN in a row where a bin has none. bins: 1 to n."""
    edges = np.linspace(0, values.shape[1], bins + 1).astype(int)[:-1]
    finite = np.isfinite(values)
    count = np.add.reduceat(finite, edges, axis=1, dtype=int)
    total = np.add.reduceat(np.where(finite, values, 0.0), edges, axis=1)
    return np.where(count, total / np.maximum(count, 1), np.nan)


def plain(values: Iterable[float], digits: int = 6) -> list[float | None]:
    """Values rounded to `digits` significant digits for JSON; infinities and NaN, which it lacks, are None."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]
