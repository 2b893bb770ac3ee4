"""Matrix products by numpy's BLAS."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.memory.rounding import fill, float32_for, put, widened

BIAS_BYTES = 1024 * 1024
"""Of a result to which a bias is added at a time."""

SCRATCH_BYTES = 2 * 1024 * 1024
"""Of a product that is added to something. With half of it BLAS packs its right operand so often that it shows."""

SCRATCH_ROWS = 32
"""Blocks are multiples of this many rows, for which BLAS has its fastest inner kernel."""


def matmul(left: Array, right: Array, out: Array, bias: Array | None = None, accumulate: bool = False) -> None:
    if out.ndim > 2:
        for index in range(len(out)):
            matmul(left[index % len(left)], right[index % len(right)], out[index], bias, accumulate)
        return
    left, right = widened(left), widened(right)
    if accumulate:
        _add_product(left, right, out)
        if bias is not None:
            put(widened(bias), out, accumulate=True)
        return
    result = float32_for(out)
    np.matmul(left, right, out=result)
    if bias is not None:
        _add_bias(result, widened(bias))
    fill(out, result)


def _add_bias(result: Array, bias: Array) -> None:
    rows = max(1, BIAS_BYTES // (4 * result.shape[1]))
    for first in range(0, len(result), rows):
        result[first : first + rows] += bias


def _add_product(left: Array, right: Array, out: Array) -> None:
    """out += left right: numpy's BLAS cannot add to what is there, so blocks are added while the cache has them."""
    rows = max(SCRATCH_ROWS, SCRATCH_BYTES // (4 * out.shape[1]) // SCRATCH_ROWS * SCRATCH_ROWS)
    scratch = np.empty((min(rows, len(out)), out.shape[1]), np.float32)
    for first in range(0, len(out), rows):
        block = out[first : first + rows]
        put(np.matmul(left[first : first + rows], right, out=scratch[: len(block)]), block, accumulate=True)
