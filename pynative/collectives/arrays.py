"""MindSpore tensors as numpy arrays and back, without copying, in the six types that travel.

bfloat16 travels as its bits (uint16). Reductions of 16-bit floats are summed in float32, in group order, and rounded
once, so that every rank gets the same bits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.dtypes import DTYPES


class Kind(NamedTuple):
    """How one of MindSpore's types travels: its name, the type itself, and numpy's type of the same bits."""

    name: str
    type: object
    storage: np.dtype


KINDS = {
    kind.type: kind
    for kind in (
        Kind(name, ms.bool_ if name == "bool" else getattr(ms, name), np.dtype(found.numpy))
        for name, found in DTYPES.items()
    )
}

REDUCTIONS: dict[str, Callable] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""`numpy.add` of bools is the logical or."""


def kind_of(dtype) -> Kind:
    """The kind of a MindSpore type. Raises ValueError for one that does not travel."""
    kind = KINDS.get(dtype)
    if kind is None:
        raise ValueError(f"collectives carry {', '.join(kind.name for kind in KINDS.values())}, not {dtype}")
    return kind


def to_numpy(x: Tensor, kind: Kind) -> np.ndarray:
    """The tensor's own memory (a copy if it is not contiguous), bfloat16 as uint16."""
    array = x.asnumpy()
    return array.view(np.uint16) if kind.name == "bfloat16" else array


def to_tensor(array: np.ndarray, kind: Kind) -> Tensor:
    """A tensor over a contiguous array's memory."""
    return ms.from_numpy(array.view(_bfloat16()) if kind.name == "bfloat16" else array)


def writable(x: Tensor, kind: Kind) -> np.ndarray:
    """The tensor's own memory, to be written. Raises ValueError for a view: MindSpore hands out copies of those."""
    array = to_numpy(x, kind)
    if array.__array_interface__["data"][0] != x.data_ptr():
        raise ValueError("out is a view of another tensor, whose memory is out of reach; pass a tensor of its own")
    return array


@functools.cache
def _bfloat16() -> np.dtype:
    """numpy's name for bfloat16, which MindSpore registers."""
    return ms.Tensor([0.0], ms.bfloat16).asnumpy().dtype


def reduce_into(target: np.ndarray, parts: Sequence[np.ndarray], op: str, kind: Kind) -> None:
    """target = parts[0] op parts[1] op ..., in that order; `target` may be the first of the parts."""
    if kind.name in ("int32", "int64", "bool"):
        _fold(target, parts, op)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if kind.name == "float32":
            _fold(target, parts, op)
        else:
            wide = [_widen(part, kind) for part in parts]
            _fold(wide[0], wide, op)
            _narrow_into(target, wide[0], kind)


def _fold(target: np.ndarray, parts: Sequence[np.ndarray], op: str) -> None:
    reduce = REDUCTIONS[op]
    reduce(parts[0], parts[1], out=target)
    for part in parts[2:]:
        reduce(target, part, out=target)


def _widen(array: np.ndarray, kind: Kind) -> np.ndarray:
    if kind.name == "float16":
        return array.astype(np.float32)
    bits = array.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _narrow_into(target: np.ndarray, values: np.ndarray, kind: Kind) -> None:
    """Round to nearest, ties to even; a NaN stays one."""
    if kind.name == "float16":
        np.copyto(target, values, casting="same_kind")
        return
    bits = values.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + 0x7FFF)
    rounded >>= 16
    np.copyto(target, rounded, casting="unsafe")
    not_a_number = np.isnan(values)
    if not_a_number.any():
        target[not_a_number] = (bits[not_a_number] >> 16) | 0x40
