"""16-bit types on a CPU: values are widened to float32, computed with, and rounded once, to nearest even.

A float32 array is used as it is, so these cost nothing where no 16-bit type is in play. Conversions between bfloat16
and float32 are oneDNN's, 0.1 ns an entry. Those of a small array, and where oneDNN has no fast one, are numpy's on the
bits, 0.2 ns to widen and 0.5 ns to round; numpy's registered cast takes 3.5 and 0.8 ns. A NaN stays one. oneDNN takes
numbers of magnitude below 2^-126 for 0.
"""

from collections.abc import Sequence

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.dtypes import BFLOAT16
from pynative.onednn import primitives
from pynative.onednn.layouts import layout_of
from pynative.onednn.library import Primitive, library

FLOAT32 = np.dtype(np.float32)

FEW = 1 << 15
"""Entries below which numpy is as fast as a call of oneDNN."""


def widened(array: Array) -> Array:
    """The values as float32: the array itself if it has that type, else a copy."""
    if array.dtype == np.float32:
        return array
    out = np.empty(array.shape, np.float32)
    convert(array, out)
    return out


def convert(source: Array, out: Array) -> None:
    """Write `source` into `out`, an array of the same shape, converted to out's type."""
    types = source.dtype, out.dtype
    if types == (BFLOAT16, FLOAT32):
        if not _reordered(source, out):
            np.left_shift(source.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)
    elif types == (FLOAT32, BFLOAT16):
        if not _reordered(source, out):
            _round_bits(source, out)
    else:
        np.copyto(out, source, casting="unsafe")


def _reordered(source: Array, out: Array) -> bool:
    """Convert `source` into `out` by oneDNN; False, and nothing written, where it has no fast way or the array is
    small."""
    if not _is_for_onednn(source):
        return False
    if source.flags.c_contiguous and out.flags.c_contiguous:
        source, out = source.reshape(-1), out.reshape(-1)
    return _executed(primitives.reorder(layout_of(source), layout_of(out)), source, out)


def _is_for_onednn(array: Array) -> bool:
    return array.size >= FEW and library() is not None


def _executed(primitive: Primitive | None, *arrays: Array) -> bool:
    if primitive is None:
        return False
    primitive(*arrays)
    return True


def _round_bits(values: Array, out: Array) -> None:
    bits, out_bits = values.view(np.uint32), out.view(np.uint16)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    np.copyto(out_bits, rounded, casting="unsafe")
    not_a_number = np.isnan(values)
    if not_a_number.any():  # rounding may have turned their bits into an infinity or a number
        out_bits[not_a_number] = (bits[not_a_number] >> np.uint32(16)) | np.uint32(0x40)


def sum_into(out: Array, parts: Sequence[Array]) -> None:
    """Write the sum of `parts` (at least two) in their order into `out`: all of one type and shape, summed in float32
    and rounded once. out may be the first of the parts."""
    flat = [part.reshape(-1) for part in (out, *parts) if part.flags.c_contiguous]
    if out.dtype == BFLOAT16 and len(flat) == len(parts) + 1 and _is_for_onednn(out):
        total, *addends = flat
        if _executed(primitives.total(layout_of(total), len(addends)), *addends, total):
            return
    result = np.add(widened(parts[0]), widened(parts[1]), out=float32_for(out))
    for part in parts[2:]:
        result += widened(part)
    fill(out, result)


def float32_for(out: Array) -> Array:
    """Memory in which to compute the values of `out`: `out` itself when it is float32, else new memory."""
    return out if out.dtype == np.float32 else np.empty(out.shape, np.float32)


def bits(array: Array) -> Array:
    """The array's memory as unsigned integers of its item size, which numpy fills and compares many times as fast as
    bfloat16."""
    return array.view(f"u{array.itemsize}")


def fill(out: Array, result: Array) -> None:
    """Round into `out` a result that was computed in `float32_for(out)`; nothing if that is `out` itself."""
    if result is not out:
        convert(result, out)


def put(values: Array, out: Array, accumulate: bool) -> None:
    """Write float32 values into `out`, float32 or of 16 bits, or with `accumulate` add them to out's; rounded once
    to out's type."""
    if not accumulate:
        convert(values, out)
    elif out.dtype == np.float32:
        out += values
    else:
        convert(widened(out) + values, out)
