"""MindSpore's own checkpoint file (`mindspore.save_checkpoint`, .ckpt), written and read without MindSpore.

It is a protocol buffer message. Each tensor is an entry of field 1, with its name (1) and a message (2) of dimensions
(1), type (2) and values (3); a large one is several entries that follow each other. With its crc_check MindSpore
appends a checksum, which is not looked at here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.tensor_file import FileRecord, TensorFile, as_lazy, bits_of, write_blocks, write_tensors
from parallel_core.numerics.dtypes import DTYPES, Array
from parallel_core.system.protobuf import entry, fields, opening

SUFFIX = ".ckpt"
_SLICE = 512 << 20
"""The most bytes of a tensor in one entry."""
_CHECKSUM = b"crc_num"
_TYPES = {dtype.mindspore: dtype for dtype in DTYPES.values()}


def write_mindspore(path: Path, tensors: Mapping[str, Array | LazyTensor]) -> FileRecord:
    """Write MindSpore's file of these tensors, by name, and bring it to the disk; tensors that are not in memory are
    read one by one. Returns the file's record for a manifest. Raises ValueError for a tensor whose type is none of
    DTYPES."""
    return write_blocks(path, _blocks(as_lazy(tensors)))


def _blocks(tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, Any]]:
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name}: a checkpoint holds {', '.join(DTYPES)}, not {tensor.dtype}; convert it")
        bits = bits_of(tensor.read())
        shape = b"".join(entry(1, size) for size in tensor.shape) + entry(2, DTYPES[tensor.dtype].mindspore.encode())
        for start in range(0, max(len(bits), 1), _SLICE):
            part = bits[start : start + _SLICE]
            inner = shape + opening(3, len(part))
            outer = entry(1, name.encode()) + opening(2, len(inner) + len(part)) + inner
            yield "", opening(1, len(outer) + len(part)) + outer
            yield name, part


class MindSporeFile(TensorFile):
    """A MindSpore file to read from; only tensors that are asked for are read. Raises ValueError naming the file if it
    is missing, isn't one, ends within an entry, has a type that is none of DTYPES, or a name again in an entry that
    does not continue the tensor; methods raise it for a tensor whose values are too few or too many for its shape."""

    kind = "MindSpore"

    def _read_header(self) -> int:
        self._contents: list[range] = []
        """The bytes in the file that each entry's values take, in the order of the entries."""
        self._starts: list[int] = []
        """The first byte of each entry's values if all values stood one after another."""
        self._length = 0
        data = self._map
        end = len(data) - (17 if bytes(data[-17:-10]) == _CHECKSUM else 0)
        for field, start, stop in fields(data, 0, end):
            if field != 1:
                raise ValueError(f"no entry of a tensor at byte {start}")
            self._add(start, stop)
        return len(data)

    def _add(self, start: int, stop: int) -> None:
        """Note the entry in these bytes of the file: a tensor, or the continuation of one."""
        outer = {field: (first, last) for field, first, last in fields(self._map, start, stop)}
        inner = list(fields(self._map, *outer[2]))
        ((_, *kind),) = (found for found in inner if found[0] == 2)
        ((_, *content),) = (found for found in inner if found[0] == 3)
        name, shape = self._text(*outer[1]), [size for field, size, _ in inner if field == 1]
        dtype, begin = _TYPES[self._text(*kind)].safetensors, self._length
        stored = self._entries.setdefault(name, {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin]})
        if stored["data_offsets"][1] != begin or (stored["dtype"], stored["shape"]) != (dtype, shape):
            raise ValueError(f"{name} is there twice")
        self._contents.append(range(*content))
        self._starts.append(begin)
        self._length = stored["data_offsets"][1] = begin + len(self._contents[-1])

    def _text(self, start: int, stop: int) -> str:
        return bytes(self._map[start:stop]).decode()

    @cached_property
    def _map(self) -> Array:
        empty = not self.path.stat().st_size  # an empty file cannot be mapped
        return np.zeros(0, np.uint8) if empty else np.memmap(self.path, np.uint8, mode="r").view(np.ndarray)

    def _data(self, begin: int, end: int) -> Array:
        parts = [np.zeros(0, np.uint8)]
        for index in range(bisect_right(self._starts, begin) - 1, bisect_left(self._starts, end)):
            content = self._contents[index][max(0, begin - self._starts[index]) : end - self._starts[index]]
            parts.append(self._map[content.start : content.stop])
        return parts[-1] if len(parts) <= 2 else np.concatenate(parts)

    def _header_checksum(self) -> int:
        found, position = 0, 0
        for content in self._contents:
            found, position = crc32(self._map[position : content.start].data, found), content.stop
        return crc32(self._map[position:].data, found)

    def tensor(self, name: str) -> LazyTensor:
        """The tensor of this name, which is read when its values are asked for. Raises KeyError if the file has no
        such tensor, ValueError as the class says."""
        dtype, shape, begin, end = self._place(name)
        kind = DTYPES[dtype].numpy
        return LazyTensor(shape, dtype, lambda: np.array(self._data(begin, end).view(kind)).reshape(shape))


def open_tensors(path: Path) -> TensorFile:
    """A file of tensors to read from: MindSpore's if its suffix is .ckpt, else a safetensors file. Raises ValueError as
    the two classes do."""
    return MindSporeFile(path) if path.suffix == SUFFIX else TensorFile(path)


def write_by_name(path: Path, tensors: Mapping[str, Array | LazyTensor]) -> FileRecord:
    """Write MindSpore's file if the suffix is .ckpt, else a safetensors file, of these tensors, by name, and bring it
    to the disk. Returns the file's record for a manifest. Raises ValueError for a tensor whose type is none of
    DTYPES."""
    return (write_mindspore if path.suffix == SUFFIX else write_tensors)(path, tensors)
