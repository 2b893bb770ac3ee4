"""Layer norm (Ba et al. 2016) and RMS norm (Zhang & Sennrich 2019) of a block of rows.

With x^ the normalized input, g = dy * scale and c(.) the mean over a row (0 for RMS norm, which doesn't centre):
    dx = (g - c(g) - x^ * mean(g * x^)) / deviation      dscale = sum dy * x^      dshift = sum dy
The gradient's row means are matrix-vector products with `scale`: mean(g * x^) = (dy * x^) scale / h.
"""

from functools import lru_cache

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.memory.rounding import fill, float32_for, widened


@lru_cache(maxsize=64)
def _averaging(size: int) -> Array:
    """Float32 [h] of 1 / h: a row's product with it is the row's mean."""
    return np.full(size, 1 / size, np.float32)


def norm(
    x: Array, scale: Array, shift: Array | None, epsilon: float, out: Array, mean: Array | None, inverse: Array
) -> None:
    rows, result = widened(x), float32_for(out)
    if mean is not None:
        np.matmul(rows, _averaging(rows.shape[1]), out=mean)
        rows = np.subtract(rows, mean[:, None], out=result)
    squares = np.einsum("rh,rh->r", rows, rows)
    np.divide(1, np.sqrt(squares / np.float32(rows.shape[1]) + np.float32(epsilon)), out=inverse)
    np.multiply(rows, inverse[:, None], out=result)
    result *= scale
    if shift is not None:
        result += shift
    fill(out, result)


def norm_gradient(
    dy: Array, x: Array, scale: Array, mean: Array | None, inverse: Array,
    dx: Array, scale_gradient: Array, shift_gradient: Array | None,
) -> None:  # fmt: skip
    gradient, result, size = widened(dy), float32_for(dx), np.float32(x.shape[1])
    normalized = _normalized(widened(x), mean, inverse[:, None])
    product = np.multiply(gradient, normalized, out=result)
    ones = np.ones(len(x), np.float32)
    np.matmul(ones, product, out=scale_gradient)
    normalized *= (np.matmul(product, scale) / size)[:, None]
    np.multiply(gradient, scale, out=result)
    result -= normalized
    if mean is not None:
        result -= (np.matmul(gradient, scale) / size)[:, None]
    result *= inverse[:, None]
    if shift_gradient is not None:
        np.matmul(ones, gradient, out=shift_gradient)
    fill(dx, result)


def _normalized(x: Array, mean: Array | None, inverse: Array) -> Array:
    if mean is None:
        return np.multiply(x, inverse)
    normalized = np.subtract(x, mean[:, None])
    normalized *= inverse
    return normalized
