"""A folder of `torch.distributed.checkpoint`: `.metadata` says which chunk of which tensor lies where in its files.

A chunk is an archive of torch.save of its own, in a file that holds many, one after another.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.lazy import NUMPY, Assembled, LazyTensor, assembled
from parallel_core.checkpoint.torch_files.archive import ArchivedTensor, read_archive
from parallel_core.checkpoint.torch_files.pickles import StandIn, read_pickle
from parallel_core.sharding import Box
from parallel_core.system.files import plain_file, read_plain

METADATA = ".metadata"


@dataclass(frozen=True)
class _Stored:
    """The place of a chunk's archive: a file, its first byte there, and its length in bytes."""

    path: Path
    offset: int
    length: int

    @cache  # noqa: B019 - a chunk's few bytes of description
    def tensor(self) -> ArchivedTensor:
        """The tensor in the chunk's archive, unread. Raises ValueError if there is none, and as `read_archive`."""
        found = read_archive(self.path, self.offset, self.length)
        if not isinstance(found, ArchivedTensor):
            raise ValueError(f"{self.path}: no tensor at byte {self.offset}")
        return found


def read_tensors(folder: Path, wanted: Callable[[str], bool]) -> dict[str, Assembled]:
    """Key -> tensor, unread, of the tensors whose keys are wanted. Raises ValueError naming a tensor of which a chunk
    is missing, there twice, too short or beyond the tensor; also for a file that `.metadata` names and that is missing,
    too short or compressed; KeyError for a type that is not known here; OSError without `.metadata`."""
    path, metadata = plain_file(folder, METADATA), _metadata(folder)
    places = {_index(index): _stored(folder, info) for index, info in metadata.get("storage_data").items()}
    found = {}
    for key, described in metadata.get("state_dict_metadata").items():
        if described.path.endswith("TensorStorageMetadata") and wanted(key):
            shape = tuple(described.get("size"))
            dtype = _dtype(described)
            try:
                found[key] = assembled(shape, dtype, _pieces(key, described, places, dtype))
            except ValueError as error:
                raise ValueError(f"{path}: {key}: {error}") from error
    return found


def read_objects(folder: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """(key, content) of each archive whose key is wanted: an object, or a chunk if it is a tensor's key; tensors are
    unread. The first slash and all behind it (the number of a part) are taken off a key, also before `wanted` sees it,
    so one key can come several times. Raises ValueError for a wanted key's file that is missing, too short, compressed
    or no archive, OSError without `.metadata`."""
    for index, info in _metadata(folder).get("storage_data").items():
        key = _index(index)[0].partition("/")[0]
        if wanted(key):
            stored = _stored(folder, info)
            yield key, read_archive(stored.path, stored.offset, stored.length)


def archives(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """(file, offset, length) of every archive of the checkpoint, by `.metadata`. Raises ValueError for a file that is
    missing, too short or compressed, OSError without `.metadata`."""
    for info in _metadata(folder).get("storage_data").values():
        stored = _stored(folder, info)
        yield stored.path, stored.offset, stored.length


def _metadata(folder: Path) -> Any:
    path = plain_file(folder, METADATA)
    found = read_pickle(read_plain(path), str(path))
    if not (isinstance(found, StandIn) and isinstance(found.get("storage_data"), dict)):
        raise ValueError(f"{path}: it holds no description of a checkpoint")
    return found


def _pieces(key: str, described: Any, places: Mapping[Any, _Stored], dtype: str) -> Iterator[tuple[Box, LazyTensor]]:
    for chunk in described.get("chunks"):
        start, size = tuple(chunk.get("offsets")), tuple(chunk.get("sizes"))
        stored = places.get((key, start))
        if stored is None:
            raise ValueError(f"no file has its chunk at {list(start)}")
        if prod(size) * np.dtype(NUMPY[dtype]).itemsize > stored.length:
            raise ValueError(f"its chunk of {list(size)} at {list(start)} has {stored.length} bytes, which is too few")
        yield Box.alone(start, size), _chunk(stored, size, dtype)


def _chunk(stored: _Stored, shape: tuple[int, ...], dtype: str) -> LazyTensor:
    def load() -> Any:
        tensor = stored.tensor()
        if (tensor.shape, tensor.dtype) != (shape, dtype):
            raise ValueError(
                f"{stored.path}: {list(tensor.shape)} {tensor.dtype} at byte {stored.offset}, {METADATA} says "
                f"{list(shape)} {dtype}"
            )
        return tensor.read()

    return LazyTensor(shape, dtype, load)


def _index(index: Any) -> tuple[str, tuple[int, ...] | None]:
    """(key, first index of the chunk along each axis); the second is None for an object that is no tensor."""
    offset = index.get("offset")
    return index.get("fqn"), None if offset is None else tuple(offset)


def _stored(folder: Path, info: Any) -> _Stored:
    if info.get("transform_descriptors"):
        raise ValueError(f"{folder}: its chunks are compressed, which is not known here; save it without")
    name, offset, length = (info.get(field) for field in ("relative_path", "offset", "length"))
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
        raise ValueError(f"{folder / METADATA}: names no file, first byte and length of a chunk; restore it")
    path = plain_file(folder, name)
    if not path.is_file() or not 0 <= offset <= offset + length <= path.stat().st_size:
        raise ValueError(f"{path}: missing or shorter than {METADATA} says; restore it or take another checkpoint")
    return _Stored(path, offset, length)


def _dtype(described: Any) -> str:
    """The type's name in a TensorProperties, which is pickled by fields or as a tuple whose first entry is the type."""
    properties = described.get("properties")
    state = properties.state
    return str(state["dtype"] if isinstance(state, dict) else state[0])
