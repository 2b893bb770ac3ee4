"""Rounding to 4-bit formats in which neighbouring numbers share a scale; results are float32.

MXFP4: 32 numbers with a sign, two exponent bits and one mantissa bit (E2M1) share a power of two ("OCP Microscaling
Formats", 2023). NF4: 64 numbers, each one of 16 quantiles of a normal distribution, share their largest magnitude;
these magnitudes less their mean are 8-bit numbers of which 256 share a scale (double quantisation; "QLoRA", Dettmers et
al., 2023).
Rounding is to the nearest; for a magnitude nearly in the middle `bitsandbytes` may take the other number.
"""

import numpy as np

from parallel_core.numerics.dtypes import Array

MXFP4_BLOCK, NF4_BLOCK, SCALE_BLOCK = 32, 64, 256
"""The number of values that share a scale: in MXFP4, in NF4, and of NF4's scales themselves."""

_LARGEST, _LARGEST_EXPONENT, _SMALLEST_EXPONENT = 6.0, 2, -127
"""The largest number of E2M1, the exponent of that, and the smallest exponent of a block's scale."""

NORMAL_QUANTILES = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
        0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
"""The 16 numbers of NF4, float32, ascending."""


def _in_blocks(values: Array, block: int) -> Array:
    """[..., n] -> [..., n / block, block], the last block filled up with zeros."""
    missing = -values.shape[-1] % block
    filled = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)]) if missing else values
    return filled.reshape(*values.shape[:-1], -1, block)


def _out_of_blocks(blocks: Array, length: int) -> Array:
    return np.ascontiguousarray(blocks.reshape(*blocks.shape[:-2], -1)[..., :length])


def mxfp4(values: Array, axis: int = -1) -> Array:
    """Finite values rounded to MXFP4, float32, in blocks of 32 along `axis`; a number in the middle between two goes
    away from zero, as in MindSpeed."""
    moved = np.moveaxis(np.asarray(values, np.float32), axis, -1)
    blocks = _in_blocks(moved, MXFP4_BLOCK)
    # frexp: |x| = m 2^e with m in [0.5, 1), so that e - 1 is the exponent.
    exponent = np.frexp(np.abs(blocks).max(axis=-1, keepdims=True))[1] - 1 - _LARGEST_EXPONENT
    scale = np.ldexp(np.float32(1), np.maximum(exponent, _SMALLEST_EXPONENT)).astype(np.float32)
    scaled = blocks / scale
    step = np.ldexp(np.float32(0.5), np.maximum(np.frexp(scaled)[1] - 1, 0)).astype(np.float32)
    rounded = np.minimum(np.floor(np.abs(scaled) / step + np.float32(0.5)) * step, _LARGEST)
    result = _out_of_blocks(np.copysign(rounded, scaled) * scale, moved.shape[-1])
    return np.ascontiguousarray(np.moveaxis(result, -1, axis))


def _nearest(values: Array, numbers: Array) -> Array:
    """For each value the nearest one of `numbers`, which ascend."""
    return np.asarray(numbers[np.searchsorted((numbers[1:] + numbers[:-1]) / 2, values)])


def _dynamic_numbers() -> Array:
    """The 256 numbers in (-1, 1] of the 8-bit format of scales, ascending, float32: a sign, a decimal exponent, and in
    the bits that the exponent leaves of 7 a linear fraction ("8-bit Optimizers", Dettmers et al., 2022)."""
    found = [0.0, 1.0]
    for bits in range(7):
        bounds = np.linspace(0.1, 1, 2**bits + 1, dtype=np.float32)
        middles = 10.0 ** (bits - 6) * (bounds[1:] + bounds[:-1]) / 2
        found += [*middles, *-middles]
    return np.array(sorted(found), np.float32)


DYNAMIC_NUMBERS = _dynamic_numbers()


def _scaled_by_largest(values: Array, block: int, numbers: Array) -> tuple[Array, Array]:
    """A vector's blocks [n / block, block] divided by their largest magnitudes and rounded to `numbers`; and these
    magnitudes [n / block, 1]."""
    blocks = _in_blocks(values, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return _nearest(blocks / np.where(largest == 0, np.float32(1), largest), numbers), largest


def nf4(values: Array) -> Array:
    """Finite values rounded to NF4, float32, in the same shape: blocks of 64 in row-major order, whose scales are
    rounded to 8 bits."""
    flat = np.asarray(values, np.float32).reshape(-1)
    numbers, largest = _scaled_by_largest(flat, NF4_BLOCK, NORMAL_QUANTILES)
    mean = largest.mean(dtype=np.float32)
    coded, scales = _scaled_by_largest(largest.reshape(-1) - mean, SCALE_BLOCK, DYNAMIC_NUMBERS)
    largest = _out_of_blocks(coded * scales, largest.size).reshape(largest.shape) + mean
    return _out_of_blocks(numbers * largest, flat.size).reshape(np.shape(values))
