"""Reading of `torch.save`'s zip archive: `NAME/data.pkl`, and `NAME/data/0`, `1`, ... with the bytes of the
storages."""

import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.lazy import NUMPY, LazyTensor, in_file
from parallel_core.checkpoint.torch_files.pickles import Storage, read_pickle
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import Box
from parallel_core.system.files import regular

_LOCAL_HEADER = struct.Struct("<26xHH")
"""Format of a zip entry's local header: the lengths of its name and of its extra field, after 26 bytes."""
_MOST_PICKLE = 1 << 31
_UNREADABLE = (zipfile.BadZipFile, RuntimeError, EOFError, struct.error, UnicodeDecodeError, zlib.error)
"""Errors of the zip module for archives that are damaged, encrypted, or of a kind that it does not know."""


@dataclass(frozen=True)
class StoredBytes:
    """A storage of torch: a run of bytes of a file, from byte `offset` on, with entries of type `dtype`. size: in
    bytes."""

    path: Path
    offset: int
    """The storage's first byte in the file."""
    size: int
    """Length of the storage in bytes."""
    dtype: str
    """Type of the storage's entries."""


@dataclass(frozen=True)
class ArchivedTensor(LazyTensor):
    """A tensor of an archive: a view of a storage, which other tensors may share. first: index of its first entry in
    the storage; strides: distances of neighbours along each axis, in entries."""

    storage: StoredBytes
    strides: tuple[int, ...]
    """Distance of neighbours along each axis, in entries of the storage."""
    first: int
    """Index of the tensor's first entry in the storage, in entries."""

    def part(self, box: Box) -> LazyTensor:
        """The part at `box`. Only the rows that it meets are read if the strides are those of row order, else the whole
        tensor."""
        return self._in_rows(self.shape).part(box) if self._has_rows else super().part(box)

    def flat(self) -> LazyTensor:
        """The values as a vector, in row order. Of a part of it only its entries are read if the strides are those of
        row order, else the whole tensor."""
        return self._in_rows((prod(self.shape),)) if self._has_rows else super().flat()

    @property
    def _has_rows(self) -> bool:
        return self.strides == tuple(prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def _in_rows(self, shape: tuple[int, ...]) -> LazyTensor:
        offset = self.storage.offset + self.first * np.dtype(NUMPY[self.dtype]).itemsize
        return in_file(self.storage.path, offset, shape, self.dtype)


def read_archive(path: Path, begin: int = 0, size: int | None = None) -> Any:
    """The object that `torch.save` wrote into `path`, or into its `size` bytes (None: to the end) from `begin` on;
    tensors are unread. Raises ValueError naming the file if it isn't such an archive, lacks something, has something
    that is not read here, or is compressed, encrypted or big-endian; OSError if it is missing or cannot be opened."""
    size = path.stat().st_size - begin if size is None else size
    try:
        with regular(path).open("rb") as file, zipfile.ZipFile(_Window(file, begin, size)) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            names = [name for name in entries if name.endswith("/data.pkl")]
            if len(names) != 1 or entries[names[0]].file_size > _MOST_PICKLE:
                raise ValueError(f"{path}: it has no data.pkl of a reasonable size")
            prefix = names[0].removesuffix("data.pkl")
            if len(entries) != len(archive.infolist()):
                raise ValueError(f"{path}: an entry is there twice")
            packed = [name for name, entry in entries.items() if not _is_plain(entry)]
            if packed:  # torch never compresses, and a few compressed bytes could fill the memory
                raise ValueError(f"{path}: {packed[0]} is compressed or encrypted; save it again by torch.save")
            if archive.read(f"{prefix}byteorder") != b"little" if f"{prefix}byteorder" in entries else False:
                raise ValueError(f"{path}: its numbers are big-endian")
            reader = _Reader(path, file, begin, {n.removeprefix(prefix): e for n, e in entries.items()})
            return read_pickle(archive.read(names[0]), str(path), reader.storage, reader.tensor)
    except _UNREADABLE as error:
        raise ValueError(
            f"{path}: not a readable file of torch.save ({error}); files of torch before 1.6 must be loaded and saved "
            f"again by a later one"
        ) from error


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    return entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1


def damaged_entry(path: Path, begin: int, size: int) -> str | None:
    """The name of the first entry of an archive whose checksum or header is wrong, or words saying that this is no
    archive that can be read; None if all checksums agree. Raises OSError if the file is missing or cannot be opened."""
    try:
        with regular(path).open("rb") as file, zipfile.ZipFile(_Window(file, begin, size)) as archive:
            return archive.testzip()
    except (*_UNREADABLE, ValueError) as error:
        return f"what should be an archive of torch 1.6 or later ({error})"


class _Window:
    """A readable file object over the bytes [begin, begin + size) of a file."""

    def __init__(self, file: Any, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._begin + self._at)
        data: bytes = self._file.read(left if count < 0 else min(count, left))
        self._at += len(data)
        return data


class _Reader:
    """A builder of an archive's tensors, each checked to lie in its storage."""

    def __init__(self, path: Path, file: Any, begin: int, entries: dict[str, zipfile.ZipInfo]) -> None:
        self.path, self.file, self.begin, self.entries = path, file, begin, entries
        self.storages: dict[tuple[str, str], StoredBytes] = {}

    def storage(self, pid: Any) -> StoredBytes:
        """The storage of a persistent id ("storage", class, key, device, entries). Raises ValueError if it is missing,
        compressed or cut off, AssertionError if the class is none of torch's storages."""
        _, kind, key, *_ = pid
        assert isinstance(kind, Storage)
        if (key, kind.dtype) not in self.storages:
            entry = self.entries.get(f"data/{key}")
            if entry is None or entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{self.path}: storage {key} is {'missing' if entry is None else 'compressed'}")
            self.file.seek(self.begin + entry.header_offset)
            lengths = _LOCAL_HEADER.unpack(self.file.read(_LOCAL_HEADER.size))
            offset = self.begin + entry.header_offset + _LOCAL_HEADER.size + sum(lengths)
            if offset + entry.file_size > self.path.stat().st_size:
                raise ValueError(f"{self.path}: storage {key} reaches beyond the end of the file: it is cut off")
            self.storages[key, kind.dtype] = StoredBytes(self.path, offset, entry.file_size, kind.dtype)
        return self.storages[key, kind.dtype]

    def tensor(self, storage: StoredBytes, first: int, shape: Any, strides: Any) -> ArchivedTensor:
        """The tensor that is a view of a storage. first, strides: in entries. Raises ValueError for a negative number,
        if it does not fit into the storage, or if it has more entries than the stretch of the storage that it spans."""
        kind, shape, strides = np.dtype(NUMPY[storage.dtype]), tuple(shape), tuple(strides)
        whole_numbers = all(type(n) is int and n >= 0 for n in (first, *shape, *strides))
        if not whole_numbers or len(shape) != len(strides):
            raise ValueError(f"{self.path}: a tensor of shape {shape} and strides {strides} is not possible")
        span = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if prod(shape) else 0
        if (first + span) * kind.itemsize > storage.size or prod(shape) > max(span, 1):
            raise ValueError(f"{self.path}: a tensor of shape {shape} does not fit into its storage")

        def load() -> Array:
            flat = np.fromfile(storage.path, kind, span, offset=storage.offset + first * kind.itemsize)
            steps = tuple(step * kind.itemsize for step in strides)
            return np.lib.stride_tricks.as_strided(flat, shape, steps) if span else flat.reshape(shape)

        return ArchivedTensor(shape, storage.dtype, load, storage, strides, first)
