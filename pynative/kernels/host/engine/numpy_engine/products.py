"""Matrix products by numpy's BLAS, and tiles of attention's scores."""

from collections.abc import Callable
from functools import partial

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.memory.rounding import fill, float32_for, put, widened

BIAS_BYTES = 1024 * 1024
"""Bytes of a product's result to which a bias is added at a time."""

SCRATCH_BYTES = 2 * 1024 * 1024
"""Bytes of a product that is computed at a time to be added to something. With half of it BLAS packs its right operand
so often that it shows."""

SCRATCH_ROWS = 32
"""The rows of a product that is computed to be added to something are cut into blocks of a multiple of this, for which
BLAS has its fastest inner kernel."""


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


def prepared_matmul(left: Array, right: Array, out: Array) -> Callable[[], object]:
    return partial(np.matmul, left, right, out=out)


def _add_bias(result: Array, bias: Array) -> None:
    rows = max(1, BIAS_BYTES // (4 * result.shape[1]))
    for first in range(0, len(result), rows):
        result[first : first + rows] += bias


def _add_product(left: Array, right: Array, out: Array) -> None:
    """Add left right to out, a block of rows at a time while the cache has it: numpy's BLAS cannot add to a result."""
    rows = max(SCRATCH_ROWS, SCRATCH_BYTES // (4 * out.shape[1]) // SCRATCH_ROWS * SCRATCH_ROWS)
    scratch = np.empty((min(rows, len(out)), out.shape[1]), np.float32)
    for first in range(0, len(out), rows):
        block = out[first : first + rows]
        put(np.matmul(left[first : first + rows], right, out=scratch[: len(block)]), block, accumulate=True)


def score_exponentials(
    keys: Array, queries: Array, out: Array, scale: float,
    limits: Array | None = None, maximum: Array | None = None, inverse_sum: Array | None = None,
    cap: float | None = None, bias: Array | None = None,
) -> None:  # fmt: skip
    result = float32_for(out)
    matmul(keys, (widened(queries) * np.float32(scale / (cap or 1.0))).transpose(0, 2, 1), result)
    if cap is not None:
        np.tanh(result, out=result)
        result *= np.float32(cap)
    if bias is not None:
        result += bias
    if limits is not None:
        np.minimum(result, limits, out=result)
    if maximum is not None:
        result -= maximum
    np.exp(result, out=result)
    if inverse_sum is not None:
        result *= inverse_sum
    fill(out, result)


def soft_cap_slope(keys: Array, queries: Array, out: Array, scale: float) -> None:
    result = float32_for(out)
    matmul(keys, (widened(queries) * np.float32(scale)).transpose(0, 2, 1), result)
    np.tanh(result, out=result)
    np.square(result, out=result)
    np.subtract(np.float32(1), result, out=result)
    fill(out, result)


def score_gradient(
    values: Array, dout: Array, probabilities: Array, delta: Array, out: Array,
    kept: Array | None = None, kept_scale: float = 1.0, slope: Array | None = None,
) -> None:  # fmt: skip
    result = float32_for(out)
    matmul(values, dout.transpose(0, 2, 1), result)
    if kept is not None:
        result *= np.float32(kept_scale)
        result *= widened(kept)
    result -= delta
    result *= widened(probabilities)
    if slope is not None:
        result *= widened(slope)
    fill(out, result)
