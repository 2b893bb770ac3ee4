"""MindSpore tensors as numpy arrays and back, without copying, in the six types that travel.

bfloat16 travels as its bits (uint16). Reductions of 16-bit floats are summed in float32, in group order, and rounded
once, so that every rank gets the same bits.
"""

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor

TYPES = {
    ms.float32: np.dtype(np.float32),
    ms.float16: np.dtype(np.float16),
    ms.bfloat16: np.dtype(np.uint16),
    ms.int32: np.dtype(np.int32),
    ms.int64: np.dtype(np.int64),
    ms.bool_: np.dtype(np.bool_),
}
"""MindSpore's types and how they are stored on the way."""

NAMES = {dtype: str(dtype).lower() for dtype in TYPES}

REDUCTIONS: dict[str, Callable] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""`numpy.add` of bools is the logical or."""


def to_numpy(x: Tensor) -> np.ndarray:
    """The tensor's own memory (a copy if it is not contiguous), bfloat16 as uint16."""
    array = x.asnumpy()
    return array.view(np.uint16) if x.dtype == ms.bfloat16 else array


def to_tensor(array: np.ndarray, dtype) -> Tensor:
    """A tensor over a contiguous array's memory."""
    return ms.from_numpy(array.view(_bfloat16()) if dtype == ms.bfloat16 else array)


def writable(x: Tensor) -> np.ndarray:
    """The tensor's own memory, to be written. Raises ValueError if it is not contiguous."""
    if not x.is_contiguous():
        raise ValueError("out: a tensor that is not contiguous has no memory of its own; pass a contiguous one")
    return to_numpy(x)


def empty(shape: Sequence[int], dtype) -> np.ndarray:
    """A new array for a tensor of that shape and MindSpore type."""
    return np.empty(shape, TYPES[dtype])


def _bfloat16() -> np.dtype:
    """numpy's name for bfloat16, which MindSpore registers."""
    if "bfloat16" not in _cache:
        _cache["bfloat16"] = ms.Tensor([0.0], ms.bfloat16).asnumpy().dtype
    return _cache["bfloat16"]


_cache: dict[str, np.dtype] = {}


def reduce_into(target: np.ndarray, parts: Sequence[np.ndarray], op: str, dtype) -> None:
    """target = parts[0] op parts[1] op ..., in that order; `target` may be the first of the parts."""
    with np.errstate(over="ignore", invalid="ignore"):
        _reduce_into(target, parts, op, dtype)


def _reduce_into(target: np.ndarray, parts: Sequence[np.ndarray], op: str, dtype) -> None:
    if dtype in (ms.float16, ms.bfloat16):
        total = _widen(parts[0], dtype)
        for part in parts[1:]:
            REDUCTIONS[op](total, _widen(part, dtype), out=total)
        _narrow_into(target, total, dtype)
    elif len(parts) == 1:
        np.copyto(target, parts[0])
    else:
        REDUCTIONS[op](parts[0], parts[1], out=target)
        for part in parts[2:]:
            REDUCTIONS[op](target, part, out=target)


def _widen(array: np.ndarray, dtype) -> np.ndarray:
    if dtype == ms.float16:
        return array.astype(np.float32)
    bits = array.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _narrow_into(target: np.ndarray, values: np.ndarray, dtype) -> None:
    """Round to nearest, ties to even; a NaN stays one."""
    if dtype == ms.float16:
        np.copyto(target, values, casting="same_kind")
        return
    bits = values.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + 0x7FFF)
    rounded >>= 16
    np.copyto(target, rounded, casting="unsafe")
    not_a_number = np.isnan(values)
    if not_a_number.any():
        target[not_a_number] = (bits[not_a_number] >> 16) | 0x40
