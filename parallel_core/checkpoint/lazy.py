"""Tensors that are read when their values are asked for, so that a conversion need not hold a model in memory.

An operation on them (a part, a concatenation, a transposition) is another such tensor, and reads its sources when it is
read. A part reads only the rows that it meets of a tensor in a file (`InFile`), only the pieces that it meets of one
made of pieces (`Assembled`), and the whole tensor of a plain `LazyTensor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.layout import cover_problem, overlap
from parallel_core.numerics.dtypes import DTYPES, Array
from parallel_core.sharding import Box

NUMPY = {name: dtype.numpy for name, dtype in DTYPES.items()} | {"float64": "float64"}
FLOAT8 = "float8_e4m3"
NUMPY |= {name: name for name in ("uint8", "int8", "int16")} | {FLOAT8: "uint8"}
"""Type -> the numpy type of its bits, of types that other tools' files have, too."""


@dataclass(frozen=True)
class LazyTensor:
    """A tensor by shape and type, and a function that reads its values."""

    shape: tuple[int, ...]
    dtype: str
    """Name of the values' type: one of DTYPES, or one that only other tools' files have."""
    load: Callable[[], Array]
    """A function that returns an array of this shape with the values' bits: those of bfloat16 as uint16."""

    @property
    def nbytes(self) -> int:
        """The number of bytes of the values."""
        return prod(self.shape) * np.dtype(NUMPY[self.dtype]).itemsize

    def read(self) -> Array:
        """The values, bfloat16 as the uint16 of its bits, float8 as the uint8."""
        array = self.load()
        assert array.shape == self.shape, (array.shape, self.shape)
        return array

    def widened(self) -> Array:
        """The values, 16-bit floats as float32, exactly; other types as `read` gives them."""
        array = self.read()
        if self.dtype == "bfloat16":
            return from_bfloat16(array)
        return array.astype(np.float32) if self.dtype == "float16" else array

    def part(self, box: Box) -> LazyTensor:
        """The part that begins at `box.start` and has the shape `box.shape`; reading it reads the whole tensor, except
        in subclasses that know how to read less."""
        return LazyTensor(box.shape, self.dtype, lambda: self.read()[box.in_whole])

    def changed(self, shape: tuple[int, ...], change: Callable[[Array], Array]) -> LazyTensor:
        """The tensor that `change` makes of the values (as `read` gives them), of shape `shape` and the same type."""
        return LazyTensor(shape, self.dtype, lambda: change(self.read()))

    def sliced(self, slices: Sequence[slice]) -> LazyTensor:
        """The part at these slices, one for each axis, with start and stop."""
        return self.part(Box.alone(tuple(s.start for s in slices), tuple(s.stop - s.start for s in slices)))

    def run(self, first: int, count: int) -> LazyTensor:
        """The entries first..first+count-1 of a vector."""
        return self.part(Box.alone((first,), (count,)))

    def reshaped(self, shape: tuple[int, ...]) -> LazyTensor:
        """The same values, in row order, in another shape. Raises AssertionError if that has another size."""
        assert prod(shape) == prod(self.shape), (self.shape, shape)
        return self.changed(shape, lambda array: array.reshape(shape))

    def flat(self) -> LazyTensor:
        """The values as a vector, in row order."""
        return self.reshaped((prod(self.shape),))

    def transposed(self) -> LazyTensor:
        """The transpose of a matrix."""
        return self.changed(self.shape[::-1], np.transpose)

    def with_length(self, length: int) -> LazyTensor:
        """The tensor cut off or filled with zeros to `length` entries along the first axis."""

        def change(array: Array) -> Array:
            out = np.zeros((length, *array.shape[1:]), array.dtype)
            out[: len(array)] = array[:length]
            return out

        return self if self.shape[0] == length else self.changed((length, *self.shape[1:]), change)

    def rows(self, ranges: Iterable[range]) -> LazyTensor:
        """The tensor's rows at `ranges`, one or more and each of step 1, in their order."""
        chosen = list(ranges)
        count = sum(map(len, chosen))
        return self.changed(
            (count, *self.shape[1:]), lambda array: np.concatenate([array[r.start : r.stop] for r in chosen])
        )


def of_array(array: Array, dtype: str | None = None) -> LazyTensor:
    """A lazy tensor of an array in memory. dtype: its type's name, where the array's own does not tell it
    (bfloat16)."""
    return LazyTensor(array.shape, dtype or str(array.dtype), lambda: array)


@dataclass(frozen=True)
class InFile(LazyTensor):
    """A tensor whose bytes lie in the file `path` from byte `offset` on, in row order; a part of it reads only the rows
    that it meets."""

    path: Path
    offset: int
    """The tensor's first byte in the file."""

    def part(self, box: Box) -> LazyTensor:
        """The part that begins at `box.start` and has the shape `box.shape`."""
        if not self.shape:
            return self
        row = prod(self.shape[1:]) * np.dtype(NUMPY[self.dtype]).itemsize
        rows = in_file(self.path, self.offset + box.start[0] * row, (box.shape[0], *self.shape[1:]), self.dtype)
        others = (slice(None), *box.in_whole[1:])
        return LazyTensor(box.shape, self.dtype, lambda: rows.read()[others])


def in_file(path: Path, offset: int, shape: tuple[int, ...], dtype: str) -> InFile:
    """A tensor whose bytes lie in a file from byte `offset` on, in row order."""
    count, kind = prod(shape), np.dtype(NUMPY[dtype])
    return InFile(shape, dtype, lambda: np.fromfile(path, kind, count, offset=offset).reshape(shape), path, offset)


def concatenated(tensors: Sequence[LazyTensor], axis: int = 0) -> LazyTensor:
    """The tensors one after another along an axis, counted from 0; their other lengths are equal. Raises ValueError for
    no tensors, AssertionError for tensors of different types."""
    (first, *_), length = tensors, sum(tensor.shape[axis] for tensor in tensors)
    assert len({tensor.dtype for tensor in tensors}) == 1, [tensor.dtype for tensor in tensors]
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return LazyTensor(shape, first.dtype, lambda: np.concatenate([tensor.read() for tensor in tensors], axis))


_COMPARED = 1 << 26
"""The most bytes of each of two tensors that are compared at once, unless a single row has more."""


def same_bits(one: LazyTensor, other: LazyTensor) -> bool:
    """Whether two tensors of at least one axis have the same shape, type and bits; they are compared some rows at a
    time."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    length, *rest = one.shape or (1,)
    step = max(1, _COMPARED * length // max(1, one.nbytes))
    starts, zeros = range(0, length, step), (0,) * len(rest)
    boxes = (Box.alone((start, *zeros), (min(step, length - start), *rest)) for start in starts)
    return all(equal_bits(one.part(box).read(), other.part(box).read()) for box in boxes)


_BLOCK = 1 << 24


def equal_bits(one: Array, other: Array) -> bool:
    """Whether two arrays of the same shape and type have the same bits; they are compared in blocks, for a comparison
    takes memory."""
    left, right = bytes_of(one), bytes_of(other)
    starts = range(0, len(left), _BLOCK)
    return all(np.array_equal(left[start : start + _BLOCK], right[start : start + _BLOCK]) for start in starts)


def bytes_of(array: Array) -> Array:
    """The bytes of an array, uint8 [n], in row order; a view where they lie so in memory, else a copy."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Assembled(LazyTensor):
    """A tensor made of pieces: boxes of it, each with the tensor that holds it. A part of it reads only the pieces that
    it meets."""

    pieces: tuple[tuple[Box, LazyTensor], ...] = ()
    """(box of the whole, the tensor in which it lies at the box's `at`)."""

    def part(self, box: Box) -> LazyTensor:
        """The part that begins at `box.start` and has the shape `box.shape`."""
        return LazyTensor(box.shape, self.dtype, lambda: _assemble(self.pieces, box, self.dtype))


def assembled(shape: tuple[int, ...], dtype: str, pieces: Iterable[tuple[Box, LazyTensor]]) -> Assembled:
    """A whole tensor of pieces that cover it. Raises ValueError if they leave something out, overlap or reach beyond
    it."""
    found = tuple(pieces)
    problem = cover_problem(shape, [box for box, _ in found])
    if problem:
        raise ValueError(problem)
    return Assembled(shape, dtype, lambda: _assemble(found, Box.whole(shape), dtype), found)


def _assemble(pieces: Iterable[tuple[Box, LazyTensor]], wanted: Box, dtype: str) -> Array:
    target = Box.alone(wanted.start, wanted.shape)
    whole = np.empty(wanted.shape, NUMPY[dtype])
    for box, tensor in pieces:
        copy = overlap(box, target)
        if copy is not None:
            whole[copy.target] = tensor.sliced(copy.source).read()
    return whole


def to_bfloat16(values: Array) -> Array:
    """The bits, uint16, of float32 values rounded to bfloat16, halves to even. A NaN with other bits than numpy's
    (0x7fc00000) may become infinite or 0."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    """The float32 values of bfloat16 numbers, given as their bits (uint16)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounds_to(main: LazyTensor, weight: LazyTensor) -> bool:
    """Whether `main`, float32, gives the values of `weight` (a float of 16 or 32 bits) when it is rounded to the
    weight's type. 0 and -0 count as equal; a weight's NaN equals nothing."""
    values = main.read().reshape(weight.shape)
    if weight.dtype == "bfloat16":
        return np.array_equal(from_bfloat16(to_bfloat16(values)), weight.widened())
    return np.array_equal(values.astype(weight.read().dtype), weight.read())
