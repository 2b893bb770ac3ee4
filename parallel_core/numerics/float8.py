"""8-bit floating-point formats: values are rounded to numbers of a format, under scales.

"FP8 Formats for Deep Learning" (Micikevicius et al., 2022). A value x becomes rounded(s x) times 1 / s, with the
scale s of its tensor or block, which follows from the largest magnitude there or, delayed, in earlier steps. Rules of
scales follow Transformer Engine's.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array

EXPONENT = np.uint32(0x7F800000)
"""The bits of float32's exponent, as a mask."""
LARGEST = np.finfo(np.float32).max


class Float8(NamedTuple):
    """One of the two 8-bit formats, E4M3 and E5M2: bits of the mantissa, exponent of the smallest normal number, and
    the largest number."""

    mantissa: int
    """The number of bits of the mantissa."""
    smallest: int
    """The exponent of the smallest normal number; below it are multiples of 2^(smallest - mantissa)."""
    largest: float


E4M3, E5M2 = Float8(3, -6, 448.0), Float8(2, -14, 57344.0)


def rounded(x: Array, form: Float8) -> Array:
    """float32 x -> the nearest number of the format, of two as near the even one. An x beyond the format's largest
    number becomes that number with x's sign. A NaN stays a NaN; a zero in the result is +0."""
    held = np.clip(x, -form.largest, form.largest)
    # Adding 1.5 x 2^23 units of the 8-bit type's last place rounds x to such units, to nearest even.
    unit = np.maximum(held.view(np.uint32) & EXPONENT, np.float32(2.0**form.smallest).view(np.uint32))
    shift = unit.view(np.float32) * np.float32(1.5 * 2.0 ** (23 - form.mantissa))
    with np.errstate(invalid="ignore"):  # signalling NaNs would warn
        held += shift
        held -= shift
    return held


def exact_scale(amax: Array, form: Float8) -> Array:
    """The scales, float32, by which largest magnitudes `amax` become the format's largest number, at most float32's
    largest; 1 where amax is 0 or not finite."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        scale = np.minimum(np.float32(form.largest) / amax, LARGEST)
    return np.where(np.isfinite(amax) & (amax > 0), scale, np.float32(1))


def lower_power(amax: Array, form: Float8) -> Array:
    """The scales, float32, by which largest magnitudes `amax` become the format's largest number (`exact_scale`),
    lowered to powers of two; 1 where amax is 0 or not finite."""
    return (exact_scale(amax, form).view(np.uint32) & EXPONENT).view(np.float32)


def shared_exponent(amax: Array, form: Float8) -> Array:
    """The scales of MXFP8: the inverse of the smallest power of two, from 2^-127 on, that is not below amax / (the
    format's largest number) ("Recipes for Pre-training LLMs with MXFP8", Mishra et al., 2025); 2^127 where amax is 0,
    2^-128 where it is not finite."""
    bits = (amax * np.float32(1 / form.largest)).view(np.uint32)
    exponent, mantissa = (bits >> 23).astype(np.int32), bits & np.uint32(0x7FFFFF)
    is_subnormal = (exponent == 0) & (mantissa <= 0x400000)
    exponent += (mantissa > 0) & (exponent < 254) & ~is_subnormal
    return np.ldexp(np.float32(1), 127 - exponent)


ScaleOf = Callable[[Array, Float8], Array]


class Rounding(NamedTuple):
    """The rounding of an operand [r, c] of a product: its format, the rule of its scales, and the rows and columns of a
    block, which has one scale (None: one scale for all)."""

    form: Float8
    scale_of: ScaleOf
    block: tuple[int, int] | None = None
    """Rows and columns of a block, which has one scale; None: one scale for all. Blocks at the ends may be smaller."""


def in_blocks(x: Array, block: tuple[int, int]) -> Array:
    """float32 x [r, c] in blocks of `block` = (rows, columns): [r / rows, rows, c / columns, columns], with the counts
    of blocks rounded up and the last blocks filled up with zeros."""
    counts = [-(-size // part) for size, part in zip(x.shape, block, strict=True)]
    filled = x
    if x.shape != (counts[0] * block[0], counts[1] * block[1]):
        filled = np.zeros((counts[0] * block[0], counts[1] * block[1]), np.float32)
        filled[: x.shape[0], : x.shape[1]] = x
    return filled.reshape(counts[0], block[0], counts[1], block[1])


def quantised(x: Array, rounding: Rounding, scale: float | None = None) -> Array:
    """float32 x [r, c] -> rounded(s x) times 1 / s, float32 [r, c], with the scale s of all of x or of each block.
    scale: takes the place of the one that follows from all of x (delayed scaling); not read for a rounding with
    blocks, which needs r above 0."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if rounding.block is None:
            own = rounding.scale_of(np.abs(x).max(initial=0), rounding.form) if scale is None else np.float32(scale)
            return rounded(x * own, rounding.form) * (np.float32(1) / own)
        blocks = in_blocks(x, rounding.block)
        scales = rounding.scale_of(np.abs(blocks).max(axis=(1, 3), keepdims=True), rounding.form)
        values = rounded(blocks * scales, rounding.form) * (np.float32(1) / scales)
    whole = values.reshape(blocks.shape[0] * blocks.shape[1], -1)
    return np.ascontiguousarray(whole[: x.shape[0], : x.shape[1]])
