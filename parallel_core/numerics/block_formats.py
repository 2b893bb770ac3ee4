"""Rounding to 4-bit formats in which neighbouring numbers share a scale; results are float32.

MXFP4: 32 numbers of one sign, two exponent and one mantissa bit (E2M1) share a power of two ("OCP Microscaling
Formats", 2023). NF4: 64 numbers, each one of 16 quantiles of a normal distribution, share their largest magnitude;
magnitudes are in turn 8 bits of which 256 share a scale (double quantisation; "QLoRA", Dettmers et al., 2023). Each is
the nearest number; of two that are nearly as near, `bitsandbytes` may take the other one for a magnitude.
"""

import numpy as np

from parallel_core.numerics.dtypes import Array

MXFP4_BLOCK, NF4_BLOCK, SCALE_BLOCK = 32, 64, 256
"""Numbers that share a scale: of MXFP4, of NF4, and of NF4's scales."""

_LARGEST, _LARGEST_EXPONENT, _SMALLEST_EXPONENT = 6.0, 2, -127
"""The largest number of E2M1, its exponent, and the smallest one of a scale."""

NORMAL_QUANTILES = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
        0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip
"""The numbers of NF4."""


def _in_blocks(values: Array, block: int) -> Array:
    """[..., n] -> [..., n / block, block], the last one filled up with zeros."""
    missing = -values.shape[-1] % block
    filled = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)]) if missing else values
    return filled.reshape(*values.shape[:-1], -1, block)


def _out_of_blocks(blocks: Array, length: int) -> Array:
    return np.ascontiguousarray(blocks.reshape(*blocks.shape[:-2], -1)[..., :length])


def mxfp4(values: Array, axis: int = -1) -> Array:
    """Values rounded to MXFP4 in blocks along an axis; a number in the middle goes away from zero, as in MindSpeed."""
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
    """The nearest of ascending numbers."""
    return np.asarray(numbers[np.searchsorted((numbers[1:] + numbers[:-1]) / 2, values)])


def _dynamic_numbers() -> Array:
    """The 256 numbers of the 8-bit format of scales: a decimal exponent and what of 7 bits that leaves for a linear
    fraction ("8-bit Optimizers", Dettmers et al., 2022)."""
    found = [0.0, 1.0]
    for bits in range(7):
        bounds = np.linspace(0.1, 1, 2**bits + 1, dtype=np.float32)
        middles = 10.0 ** (bits - 6) * (bounds[1:] + bounds[:-1]) / 2
        found += [*middles, *-middles]
    return np.array(sorted(found), np.float32)


DYNAMIC_NUMBERS = _dynamic_numbers()


def _scaled_by_largest(values: Array, block: int, numbers: Array) -> tuple[Array, Array]:
    """A vector's blocks over their largest magnitudes, as numbers of a format; and these magnitudes."""
    blocks = _in_blocks(values, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    return _nearest(blocks / np.where(largest == 0, np.float32(1), largest), numbers), largest


def nf4(values: Array) -> Array:
    """Values rounded to NF4, in blocks of them as they lie, with scales that are rounded, too."""
    flat = np.asarray(values, np.float32).reshape(-1)
    numbers, largest = _scaled_by_largest(flat, NF4_BLOCK, NORMAL_QUANTILES)
    mean = largest.mean(dtype=np.float32)
    coded, scales = _scaled_by_largest(largest.reshape(-1) - mean, SCALE_BLOCK, DYNAMIC_NUMBERS)
    largest = _out_of_blocks(coded * scales, largest.size).reshape(largest.shape) + mean
    return _out_of_blocks(numbers * largest, flat.size).reshape(np.shape(values))
