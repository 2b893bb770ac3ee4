"""Memory for activations and their gradients, in sizes of which malloc's heap has no use for scraps."""

from collections.abc import Sequence
from math import prod

import numpy as np

LARGE = 1024 * 1024
"""Bytes from which on it matters."""

_HEADER = 16
"""What glibc's malloc puts before a block, and rounds to."""


def allocated(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """`np.empty(shape, dtype)`, whose block in the heap, header included, is longer than it by a fixed ratio.

    Activations have sizes that are multiples of each other. Where one of 3 n bytes lay, three of n must fit when it is
    free again; with a header of their own they would not, and a third of it would stay empty: 56 MB of a model's
    activations of 590.
    """
    size = prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    return np.empty(size + (size >> 10) - _HEADER, np.uint8)[:size].view(dtype).reshape(shape)
