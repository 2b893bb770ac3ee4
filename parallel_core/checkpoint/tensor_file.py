"""A safetensors file, written and read by numpy.

The format: 8 bytes, the header's length, little-endian; the header, JSON of name -> dtype, shape, begin and end in the
data; the data (https://github.com/huggingface/safetensors). Written here rather than by the package because one pass
then writes, digests and syncs without a second copy of the data, and because a file that is cut off is named as that.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.lazy import LazyTensor, from_bfloat16, in_file, of_array
from parallel_core.dtypes import DTYPES

_TYPES = {dtype.safetensors: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH = 8
_BLOCK = 1 << 24


@dataclass(frozen=True)
class FileRecord:
    """What a file must be, to be believed."""

    size: int
    """Bytes."""
    blake2b: str
    """Digest of all bytes, hexadecimal."""


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray | LazyTensor], metadata: Mapping[str, str] | None = None
) -> FileRecord:
    """Write a safetensors file and bring it to the disk; tensors that are not in memory are read one by one."""
    digest, size = hashlib.blake2b(), 0
    lazy = {name: value if isinstance(value, LazyTensor) else of_array(value) for name, value in tensors.items()}
    with path.open("wb") as file:
        blocks: Iterable[Any] = chain([_header(lazy, metadata)], (_bytes(tensor.read()) for tensor in lazy.values()))
        for block in blocks:
            digest.update(block)
            size += file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size, digest.hexdigest())


def record_of(path: Path) -> FileRecord:
    """Size and digest of a file as it is."""
    digest = hashlib.blake2b()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return FileRecord(path.stat().st_size, digest.hexdigest())


def _bytes(array: np.ndarray) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


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


class TensorFile:
    """A safetensors file to read from; only what is asked for is read.

    Raises ValueError naming the file if it isn't one, or isn't whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH), "little")
                header = json.loads(file.read(min(length, path.stat().st_size)))
            header.pop(_METADATA, None)
            self._entries: dict[str, dict[str, Any]] = header
            self._data_start = _LENGTH + length
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError(f"{path}: not a readable safetensors file ({error})") from error
        if path.stat().st_size != self._data_start + end:
            raise ValueError(
                f"{path}: has {path.stat().st_size} bytes, its header promises {self._data_start + end}: it is cut off "
                f"or damaged; load another checkpoint"
            )

    @cached_property
    def _map(self) -> np.ndarray:
        return np.memmap(self.path, np.uint8, mode="r", offset=self._data_start)

    @property
    def names(self) -> list[str]:
        """Names of its tensors."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor; None if the file has none of that name."""
        return tuple(self._entries[name]["shape"]) if name in self._entries else None

    def _place(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """(our type, shape, begin, end in the data) of a tensor. Raises ValueError if they contradict each other."""
        entry = self._entries[name]
        dtype, shape, (begin, end) = _TYPES.get(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        if dtype is None:
            raise ValueError(f"{self.path}: {name} has type {entry['dtype']}; readable are {', '.join(_TYPES)}")
        if (
            not all(type(n) is int and n >= 0 for n in (*shape, begin))
            or end - begin != prod(shape) * DTYPES[dtype].bytes
        ):
            raise ValueError(f"{self.path}: {name} of shape {list(shape)} does not fit into its bytes {begin} to {end}")
        return dtype, shape, begin, end

    def tensor(self, name: str) -> LazyTensor:
        """A tensor, unread."""
        dtype, shape, begin, _ = self._place(name)
        return in_file(self.path, self._data_start + begin, shape, dtype)

    def array(self, name: str) -> np.ndarray:
        """A view of a tensor, bfloat16 as float32; bytes are read from the disk when they are touched."""
        dtype, shape, begin, end = self._place(name)
        kind = DTYPES[dtype].numpy
        if begin == end:
            return np.zeros(shape, kind)
        values = self._map[begin:end].view(kind).reshape(shape)
        return from_bfloat16(values) if dtype == "bfloat16" else values
