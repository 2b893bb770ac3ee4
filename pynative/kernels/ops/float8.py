"""Rounding of values to numbers of 8-bit types, of MindSpore operators. Scales that are not given are computed by
numpy."""

from functools import cache
from math import log2

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.numerics.dtypes import Array
from parallel_core.numerics.float8 import Float8, Rounding
from pynative.kernels.ops.elementwise import FLOAT32, cast, shaped

_largest = ops.ReduceMax(keep_dims=True)


@cache
def _shifts(form: Float8) -> Tensor:
    """1.5 x 2^23 times the unit in the last place of values with an exponent, for each exponent of the type, from the
    smallest."""
    exponents = np.arange(form.smallest, int(log2(form.largest)) + 1)
    return Tensor.from_numpy(np.ldexp(np.float32(1.5), exponents + 23 - form.mantissa))


def _rounded(x: Tensor, form: Float8) -> Tensor:
    """Float32 x -> the nearest number of the 8-bit format, of two as near the even one; beyond the largest number that
    one, with x's sign. A logarithm that is off by its last bit takes the neighbour's exponent only beside a power of
    two, to which a value rounds by either."""
    held = ops.clip_by_value(x, -form.largest, form.largest)
    exponent = ops.floor(ops.log2(ops.maximum(ops.abs(held), 2.0**form.smallest)))
    shifts = _shifts(form)
    places = ops.clip_by_value(ops.cast(exponent - form.smallest, mindspore.int32), 0, shifts.shape[0] - 1)
    shift = ops.gather(shifts, places, 0)
    return ops.where(ops.isnan(x), x, held + shift - shift)


def quantised(x: Tensor, rounding: Rounding, scale: float | None = None) -> Tensor:
    form, wide = rounding.form, cast(x, FLOAT32)
    if rounding.block is None:
        own = np.float32(_scales(ops.abs(wide).max(), rounding) if scale is None else scale)
        return _rounded(wide * float(own), form) * float(np.float32(1) / own)
    rows, columns = wide.size // wide.shape[-1], wide.shape[-1]
    blocks = _in_blocks(shaped(wide, rows, columns), rounding.block)
    scales = _scales(_largest(ops.abs(blocks), (1, 3)), rounding)
    values = _rounded(blocks * Tensor.from_numpy(scales), form) * Tensor.from_numpy(np.float32(1) / scales)
    whole = values.reshape(blocks.shape[0] * blocks.shape[1], -1)
    return whole[:rows, :columns].reshape(x.shape)


def _scales(amax: Tensor, rounding: Rounding) -> Array:
    return rounding.scale_of(amax.asnumpy(), rounding.form)


def _in_blocks(x: Tensor, block: tuple[int, int]) -> Tensor:
    """x [r, c] in blocks of `block` = (rows, columns): [r / rows, rows, c / columns, columns], filled up with zeros."""
    counts = [-(-size // part) for size, part in zip(x.shape, block, strict=True)]
    for axis, (count, part) in enumerate(zip(counts, block, strict=True)):
        missing = count * part - x.shape[axis]
        if missing:
            shape = [missing if other == axis else size for other, size in enumerate(x.shape)]
            x = ops.cat([x, ops.zeros(tuple(shape), FLOAT32)], axis)
    return x.reshape(counts[0], block[0], counts[1], block[1])


def largest_magnitude(x: Tensor) -> float:
    return float(ops.abs(cast(x, FLOAT32)).max().asnumpy()) if x.size else 0.0
