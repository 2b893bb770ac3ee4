"""Writing one of our checkpoints: with each file goes a note of the tensors in it; the manifest is made of the notes.

The notes are files too, so a barrier is enough between the ranks that write files and the one that makes the manifest.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    Run,
    Shard,
    StoredTensor,
    as_json,
    merge_tensors,
    tensor_from,
)
from parallel_core.checkpoint.mindspore_file import SUFFIX, write_by_name
from parallel_core.checkpoint.tensor_file import FileRecord
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import INSTANCES_OF_STATES, MODEL_KINDS, Coordinates, Place, ShardSpec, is_counted
from parallel_core.topology import Topology

PREFIX = "network"
"""The default of --ckpt-prefix, the beginning of files' names, which names of safetensors files leave out; another
prefix stands before them."""


class LocalTensor(NamedTuple):
    """A shard of a tensor: its place in the whole, and its values."""

    place: Place
    values: Array | LazyTensor


def writers(topology: Topology, *, sharded: bool = False) -> dict[int, str]:
    """Global rank -> the name of its file (`file_name`), for every rank that writes: the first of those with the same
    dense parameters, the first of those with the same experts, and with `sharded` also the first of those with the same
    part of the optimizer's state of either."""
    kinds = [*MODEL_KINDS, *(INSTANCES_OF_STATES.values() if sharded else ())]
    names = {}
    for rank in range(topology.world_size):
        if any(topology.group(kind, rank)[0] == rank for kind in kinds):
            tensor, stage = (topology.dense.coordinate(axis, rank) for axis in ("tp", "pp"))
            replica = topology.group("dp-cp", rank).index(rank)
            names[rank] = file_name(tensor, stage, replica)
    return names


def file_name(tensor_rank: int, stage: int, replica: int = 0) -> str:
    """Name of a rank's safetensors file: "mp_rank_", the tensor-parallel rank in at least two digits, the pipeline
    stage in at least three and, unless it is 0, `replica`, the rank's number in its dp-cp group, in as many."""
    return f"mp_rank_{tensor_rank:02d}_{stage:03d}{f'_{replica:03d}' if replica else ''}.safetensors"


@dataclass(frozen=True)
class FileNames:
    """The rule for the names of a checkpoint's files, whose ending says the format."""

    is_mindspore: bool = False
    """Whether files have MindSpore's own format and MindSpeed-Core-MS's names (--ckpt-format ckpt)."""
    prefix: str = PREFIX
    """The beginning of names (--ckpt-prefix)."""

    def of(self, rank: int, place: str, iteration: int) -> str:
        """The name of a rank's file. place: the rank's entry in `writers`, the name in the safetensors format without a
        prefix of its own; iteration: part of the name in MindSpore's format."""
        if self.is_mindspore:
            return f"{self.prefix}_rank_{rank}-0_{iteration}{SUFFIX}"
        return place if self.prefix == PREFIX else f"{self.prefix}_{place}"


def is_written(spec: ShardSpec, coordinates: Coordinates) -> bool:
    """Whether the rank at these coordinates writes its shard of a parameter: the first of those that hold the same
    shard does."""
    return is_counted(spec, coordinates) and coordinates.get(spec.replicas, (0, 1))[0] == 0


def is_state_written(spec: ShardSpec, coordinates: Coordinates, *, sharded: bool) -> bool:
    """Whether the rank at these coordinates writes its optimizer state of a parameter. sharded: replicas have parts of
    it; then, of the ranks that count it (`is_counted`), those in the first of --num-distributed-optimizer-instances
    write."""
    if not sharded:
        return is_written(spec, coordinates)
    return is_counted(spec, coordinates) and coordinates.get(INSTANCES_OF_STATES[spec.replicas], (0, 1))[0] == 0


def write_part(partial: Path, name: str, tensors: Mapping[str, LocalTensor]) -> None:
    """Write one writer's file `name`, and the note of the tensors in it, into `partial`, the directory of a checkpoint
    that is not complete. Raises ValueError for a tensor whose type is none of DTYPES."""
    stored = {
        key: StoredTensor(tensor.place.spec.shape, str(tensor.values.dtype), (Shard(name, tensor.place.boxes),))
        for key, tensor in tensors.items()
    }
    record = write_by_name(partial / name, {key: tensor.values for key, tensor in tensors.items()})
    _note(partial, name).write_text(as_json({"file": record, "tensors": stored}), encoding="utf-8")


def write_manifest(partial: Path, run: Run, names: Iterable[str]) -> Manifest:
    """Write the manifest, made of `run` and of the notes that the writers of the files `names` left, remove the notes,
    and return the manifest. After a failure it can be called again. Raises ValueError if a note is missing, and there
    is no manifest yet, AssertionError if a tensor's shards have fewer or more elements than the whole, or the notes
    disagree on its shape or type."""
    notes = {name: _note(partial, name) for name in names}
    missing = [name for name, note in notes.items() if not note.exists()]
    if missing and not (partial / MANIFEST).exists():
        raise ValueError(
            f"{partial}: {', '.join(missing)} did not arrive; --save must be a directory that all processes share"
        )
    # Notes are removed only when a whole manifest is on the disk.
    manifest = Manifest.read(partial) if missing else _written(partial, run, notes)
    for note in notes.values():
        note.unlink(missing_ok=True)
    return manifest


def _written(partial: Path, run: Run, notes: Mapping[str, Path]) -> Manifest:
    """The manifest, made of `run` and of the notes of these files, after it was written and is on the disk."""
    contents = {name: json.loads(note.read_text(encoding="utf-8")) for name, note in notes.items()}
    tensors = merge_tensors(
        {key: tensor_from(entry) for key, entry in content["tensors"].items()} for content in contents.values()
    )
    files = {name: FileRecord(**content["file"]) for name, content in contents.items()}
    manifest = Manifest(**{entry.name: getattr(run, entry.name) for entry in fields(Run)}, tensors=tensors, files=files)
    with (partial / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    return manifest


def _note(partial: Path, name: str) -> Path:
    return (partial / name).with_suffix(".json")
