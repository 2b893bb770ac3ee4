"""A safetensors file, written and read by numpy.

The format: 8 bytes, the header's length, little-endian; the header, JSON of name -> dtype, shape, begin and end in the
data; the data (https://github.com/huggingface/safetensors). Written here rather than by the package because one pass
then writes and makes the checksums, and because a file that is cut off is named as that.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from parallel_core.checkpoint.direct_file import BLOCK, DirectFile
from parallel_core.checkpoint.lazy import FLOAT8, NUMPY, LazyTensor, bytes_of, from_bfloat16, in_file, of_array
from parallel_core.numerics.dtypes import DTYPES, Array
from parallel_core.system.files import parse_json

_TYPES = {dtype.safetensors: name for name, dtype in DTYPES.items()} | {"F8_E4M3": FLOAT8}
_METADATA = "__metadata__"
_LENGTH = 8
_MOST_HEADER = 1 << 30
"""The most bytes of a header: a name and a place for each of some million tensors."""


@dataclass(frozen=True)
class FileRecord:
    """Size (in bytes) and checksums (CRC-32) of a file as it was written. The checksums are by name of a tensor, that
    of the header (.ckpt: of all bytes that are no values) under ""."""

    size: int
    """Size of the file in bytes."""
    crc32: dict[str, int] = field(default_factory=dict)
    """Name of a tensor -> CRC-32 of its bytes, "" -> that of the header (.ckpt: of all bytes that are no values); may
    be empty, as in a manifest made by hand."""


def write_tensors(
    path: Path, tensors: Mapping[str, Array | LazyTensor], metadata: Mapping[str, str] | None = None
) -> FileRecord:
    """Write a safetensors file and bring it to the disk; lazy tensors are read one by one. metadata: the header's
    `__metadata__`. Returns the file's size and checksums. Raises ValueError, before the file is made, for a tensor
    whose type is none of DTYPES."""
    lazy = as_lazy(tensors)
    values = ((name, bits_of(tensor.read())) for name, tensor in lazy.items())
    return write_blocks(path, chain([("", _header(lazy, metadata))], values))


def as_lazy(tensors: Mapping[str, Array | LazyTensor]) -> dict[str, LazyTensor]:
    """The same tensors by name, each as a `LazyTensor`, arrays without a copy."""
    return {name: value if isinstance(value, LazyTensor) else of_array(value) for name, value in tensors.items()}


def write_blocks(path: Path, blocks: Iterable[tuple[str, Any]]) -> FileRecord:
    """Write a file from (name of a tensor or "" for the header, bytes) in order, and bring it to the disk. Several
    blocks may have one name. Returns the file's size and checksums."""
    size, checksums = 0, dict[str, int]()
    with path.open("wb", buffering=0) as raw:
        file = DirectFile(raw)
        for name, block in blocks:
            checksums.setdefault(name, 0)
            for start in range(0, len(block), BLOCK):
                piece = block[start : start + BLOCK]
                checksums[name] = crc32(piece, checksums[name])
                file.write(piece)
            size += len(block)
        file.finish()
    return FileRecord(size, crc32=checksums)


def damage(path: Path, record: FileRecord, opens: "Callable[[Path], TensorFile]") -> str | None:
    """A sentence about a file that is missing, cannot be read, has another size than its record says or, if the record
    has checksums, has other ones, with the names of up to five damaged tensors; None if nothing is found. Without
    checksums its bytes are not compared. opens: the function that opens it, such as `TensorFile`."""
    try:
        if not path.is_file():
            return f"{path}: missing"
        if path.stat().st_size != record.size:
            return f"{path}: has {path.stat().st_size} bytes, {record.size} were written: it is cut off or damaged"
        _fetch_ahead(path)
        wrong = opens(path).changed(record.crc32) if record.crc32 else []
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror or error})"
    except ValueError as error:
        return str(error)
    if wrong:
        names = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        return f"{path}: damaged: not what was written are {names}"
    return None


def _fetch_ahead(path: Path) -> None:
    """Have the system read all of a file in large pieces, not page by page as a mapped file is touched."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def bits_of(array: Array) -> Any:
    """The bytes of an array in row order as a buffer; a copy only if they do not lie so in memory."""
    return bytes_of(array).data


def _header(tensors: Mapping[str, LazyTensor], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    begin = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{name}: a checkpoint holds {', '.join(DTYPES)}, not {tensor.dtype}; convert it")
        end = begin + tensor.nbytes
        entries[name] = {
            "dtype": DTYPES[tensor.dtype].safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text


def _end(header: Mapping[str, Any]) -> int:
    """The end of the data, in bytes from its start. Raises ValueError if tensors share bytes or leave some out, which
    the format forbids."""
    end = 0
    for begin, stop in sorted(tuple(entry["data_offsets"]) for entry in header.values()):
        if type(begin) is not int or type(stop) is not int or begin != end or stop < begin:
            raise ValueError(f"a tensor lies from byte {begin} to {stop} of the data, the one before ends at {end}")
        end = stop
    return end


class TensorFile:
    """A safetensors file to read from; only tensors that are asked for are read. Raises ValueError naming the file if
    it is missing, isn't one, or isn't whole; methods raise it for a tensor of a type that is not read here, or whose
    shape does not fit its place."""

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, dict[str, Any]] = {}
        self._data_start = 0
        try:
            if not path.is_file():
                raise ValueError("no file")
            end = self._read_header()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration) as error:
            raise ValueError(f"{path}: not a readable {self.kind} file ({error})") from error
        if path.stat().st_size != end:
            raise ValueError(
                f"{path}: has {path.stat().st_size} bytes, its header promises {end}: it is cut off or damaged; load "
                f"another checkpoint"
            )

    def _read_header(self) -> int:
        """Read the entries of the header; the size that the file must have by them, in bytes."""
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH), "little")
            if length > _MOST_HEADER:
                raise ValueError(f"its header would have {length} bytes")
            header = parse_json(file.read(min(length, self.path.stat().st_size)), self.path)
        header.pop(_METADATA, None)
        self._entries, self._data_start = header, _LENGTH + length
        return self._data_start + _end(header)

    def changed(self, checksums: Mapping[str, int]) -> list[str]:
        """Names, sorted, of the tensors whose bytes have another checksum than in `checksums` (CRC-32, as in
        `FileRecord`), or that are on one side only; "its header" alone if that differs. Raises ValueError as the class
        says."""
        header = self._header_checksum()
        if header != checksums.get(""):
            return ["its header"]
        found = {name: crc32(self._data(*self._place(name)[2:]).data) for name in self._entries} | {"": header}
        return sorted(name for name in found.keys() | checksums.keys() if found.get(name) != checksums.get(name))

    def _header_checksum(self) -> int:
        with self.path.open("rb") as file:
            return crc32(file.read(self._data_start))

    @cached_property
    def _map(self) -> Array:
        return np.memmap(self.path, np.uint8, mode="r", offset=self._data_start)

    def _data(self, begin: int, end: int) -> Array:
        return self._map[begin:end] if begin < end else np.zeros(0, np.uint8)  # an empty range cannot be mapped

    @property
    def names(self) -> list[str]:
        """Names of the file's tensors."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of the tensor `name`; None if the file has none of that name. Raises ValueError as the class says."""
        return self._place(name)[1] if name in self._entries else None

    def _place(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """(our type, shape, begin, end in the data) of a tensor. Raises ValueError if they contradict each other."""
        entry = self._entries[name]
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            dtype = _TYPES.get(kind)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self.path}: the header does not say what {name} is ({error!r})") from error
        if dtype is None:
            raise ValueError(f"{self.path}: {name} has type {kind}; readable are {', '.join(_TYPES)}")
        if (
            not all(type(n) is int and n >= 0 for n in (*shape, begin))
            or end - begin != prod(shape) * np.dtype(NUMPY[dtype]).itemsize
        ):
            raise ValueError(f"{self.path}: {name} of shape {list(shape)} does not fit into its bytes {begin} to {end}")
        return dtype, shape, begin, end

    def tensor(self, name: str) -> LazyTensor:
        """The tensor of this name, which is read when its values are asked for. Raises KeyError if the file has no
        such tensor, ValueError as the class says."""
        dtype, shape, begin, _ = self._place(name)
        return in_file(self.path, self._data_start + begin, shape, dtype)

    def array(self, name: str) -> Array:
        """The values of a tensor, read-only where they are a view of the mapped file, which is read when they are
        touched; bfloat16 as a float32 copy. Raises KeyError if the file has no tensor of this name, ValueError for a
        float8 tensor, whose values need the scales beside it, and as the class says."""
        dtype, shape, begin, end = self._place(name)
        if dtype not in DTYPES:
            raise ValueError(f"{self.path}: {name} is {dtype}, an array has {', '.join(DTYPES)}; take its tensor")
        kind = DTYPES[dtype].numpy
        values = self._data(begin, end).view(kind).reshape(shape)
        return from_bfloat16(values) if dtype == "bfloat16" else values
