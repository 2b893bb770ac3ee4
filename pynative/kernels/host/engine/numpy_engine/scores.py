"""Tiles of attention's scores by numpy, in place."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.numpy_engine.products import matmul
from pynative.memory.rounding import fill, float32_for, widened


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
