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
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.dtypes import DTYPES

_NUMPY = {dtype.safetensors: dtype.numpy for dtype in DTYPES.values()}
_LENGTH = 8
_BLOCK = 1 << 24


@dataclass(frozen=True)
class FileRecord:
    """What a file must be, to be believed."""

    size: int
    """Bytes."""
    blake2b: str
    """Digest of all bytes, hexadecimal."""


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> FileRecord:
    """Write a safetensors file and bring it to the disk."""
    digest, size = hashlib.blake2b(), 0
    with path.open("wb") as file:
        blocks: Iterable[Any] = (_header(tensors), *map(_bytes, tensors.values()))
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


def _header(tensors: Mapping[str, np.ndarray]) -> bytes:
    entries, begin = {}, 0
    for name, array in tensors.items():
        if str(array.dtype) not in DTYPES:
            raise ValueError(f"{name}: a checkpoint holds {', '.join(DTYPES)}, not {array.dtype}; convert it")
        end = begin + array.nbytes
        entries[name] = {
            "dtype": DTYPES[str(array.dtype)].safetensors,
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH, "little") + text


def _from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """float32 of the same values, of which bfloat16 is the upper half."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


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
            header.pop("__metadata__", None)
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

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor; None if the file has none of that name."""
        return tuple(self._entries[name]["shape"]) if name in self._entries else None

    def array(self, name: str) -> np.ndarray:
        """A view of a tensor, bfloat16 as float32; bytes are read from the disk when they are touched."""
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        dtype = _NUMPY.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{self.path}: {name} has type {entry['dtype']}; readable are {', '.join(_NUMPY)}")
        if begin == end:
            return np.zeros(entry["shape"], dtype)
        values = self._map[begin:end].view(dtype).reshape(entry["shape"])
        return _from_bfloat16(values) if entry["dtype"] == DTYPES["bfloat16"].safetensors else values
