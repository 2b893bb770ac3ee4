"""Inverses of many small lower triangular matrices with ones on their diagonal, all at once, and triangles of ones as
masks."""

from functools import lru_cache

import numpy as np

from parallel_core.numerics.dtypes import Array

BASE = 16
"""The most rows of a triangle that is inverted by substitution."""


@lru_cache(maxsize=8)
def below_diagonal(size: int, diagonal: int) -> Array:
    """Float32 [size, size]: 1 on the diagonal with the number `diagonal` (0: the main one, -1: the one below it) and
    below that, else 0. Later calls may give the same array: not to be written."""
    return np.tril(np.ones((size, size), np.float32), diagonal)


def inverse_of_unit_lower(below: Array) -> Array:
    """(I + below)^-1, below [..., C, C] zero on and above its diagonal, C a multiple of BASE: triangles of BASE rows by
    substitution, larger ones from the inverses of their two parts on the diagonal."""
    size, inverse = below.shape[-1], np.zeros_like(below)
    own = [slice(start, start + BASE) for start in range(0, size, BASE)]
    small = _substituted(np.stack([below[..., rows, rows] for rows in own]))
    for rows, triangle in zip(own, small, strict=True):
        inverse[..., rows, rows] = triangle
    width = BASE
    while width < size:
        for start in range(0, size, 2 * width):
            first, second = slice(start, start + width), slice(start + width, start + 2 * width)
            product = inverse[..., second, second] @ below[..., second, first] @ inverse[..., first, first]
            np.negative(product, out=inverse[..., second, first])
        width *= 2
    return inverse


def _substituted(below: Array) -> Array:
    """`inverse_of_unit_lower` of small triangles by substitution, all of them at once: multiples of a row that is
    complete are subtracted from those below it."""
    factors = np.ascontiguousarray(np.moveaxis(below.reshape(-1, BASE, BASE), 0, -1))
    inverse, diagonal = np.zeros_like(factors), np.arange(BASE)
    inverse[diagonal, diagonal] = 1
    for row in range(BASE - 1):
        complete = slice(0, row + 1)
        inverse[row + 1 :, complete] -= factors[row + 1 :, row, None] * inverse[row, complete]
    return np.moveaxis(inverse, -1, 0).reshape(below.shape)
