"""MindSpore tensors of a CPU as numpy arrays and back, in the six types that travel; a contiguous tensor is not copied.

bfloat16 travels as its bits (uint16). 16-bit floats are reduced in float32, in group order, and rounded once, so that
every rank gets the same bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import DTYPES, Array
from pynative.dtypes import BFLOAT16
from pynative.memory import arrays, in_place
from pynative.memory.rounding import convert, sum_into, widened


class Kind(NamedTuple):
    """The form in which one of MindSpore's types travels: its name, MindSpore's type, and numpy's type of the same
    bits."""

    name: str
    type: object
    storage: np.dtype[Any]


KINDS = {
    kind.type: kind
    for kind in (
        Kind(name, ms.bool_ if name == "bool" else getattr(ms, name), np.dtype(found.numpy))
        for name, found in DTYPES.items()
    )
}

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""numpy's function of each reduction; `numpy.add` of bools is the logical or."""


def kind_of(dtype: object) -> Kind:
    """The Kind of a MindSpore type. Raises ValueError for a type that collectives do not carry."""
    kind = KINDS.get(dtype)
    if kind is None:
        raise ValueError(f"collectives carry {', '.join(kind.name for kind in KINDS.values())}, not {dtype}")
    return kind


def to_numpy(x: Tensor, kind: Kind) -> Array:
    """The tensor's values in their travelling form: over its own memory (a copy if it is not contiguous), bfloat16 as
    uint16."""
    return _storage(arrays.values_of(x), kind)


def _storage(array: Array, kind: Kind) -> Array:
    return array.view(np.uint16) if kind.name == "bfloat16" else array


def to_tensor(array: Array, kind: Kind) -> Tensor:
    """A tensor over the memory of a contiguous array in travelling form."""
    return ms.from_numpy(array.view(BFLOAT16) if kind.name == "bfloat16" else array)


def writable(x: Tensor, kind: Kind) -> Array:
    """An array over the tensor's own memory in travelling form, to be written. Raises ValueError for a view that is not
    contiguous: MindSpore hands out copies of those."""
    return _storage(arrays.writable(x), kind)


def reduce_into(target: Array, parts: Sequence[Array], op: str, kind: Kind) -> None:
    """Write parts[0] op parts[1] op ... (op: "sum", "max" or "min"), in that order, into `target`, which may be the
    first of the (at least two) parts. 16-bit floats are reduced in float32 and rounded once."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind.name not in ("float16", "bfloat16"):
            _fold(target, parts, op)
            return
        total, *addends = (part.view(BFLOAT16) if kind.name == "bfloat16" else part for part in (target, *parts))
        if op == "sum":
            sum_into(total, addends)
        else:
            wide = [widened(part) for part in addends]
            _fold(wide[0], wide, op)
            convert(wide[0], total)


def _fold(target: Array, parts: Sequence[Array], op: str) -> None:
    reduce = REDUCTIONS[op]
    reduce(parts[0], parts[1], out=target)
    for part in parts[2:]:
        reduce(target, part, out=target)


def copied(x: Tensor, out: Tensor, kind: Kind) -> Tensor:
    """Copy the values of x into `out`, which is contiguous, wherever its memory is, and return `out`."""
    if ms.get_context("device_target") == "CPU":
        writable(out, kind)[...] = to_numpy(x, kind)
    else:
        in_place.assign(out, x)
    return out
