"""Writing: every writer brings one file and a note of what is in it; rank 0 makes the manifest of the notes.

The notes are files too, so nothing but a barrier is needed between the writers and rank 0.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.layout import pieces
from parallel_core.checkpoint.manifest import MANIFEST, Manifest, Run, Shard, StoredTensor, merge_tensors, tensor_from
from parallel_core.checkpoint.tensor_file import FileRecord, write_tensors
from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class LocalTensor:
    """This rank's shard of a tensor."""

    spec: ShardSpec
    values: np.ndarray


def file_name(tensor_rank: int, stage: int) -> str:
    """Megatron's name of the place in the model."""
    return f"mp_rank_{tensor_rank:02d}_{stage:03d}.safetensors"


def write_part(
    partial: Path, tensors: Mapping[str, LocalTensor], tensor_rank: int, tensor_size: int, stage: int
) -> None:
    """Write the shards of one place in the model, and the note of them. Whole tensors are written by tensor rank 0."""
    name = file_name(tensor_rank, stage)
    own = {key: tensor for key, tensor in tensors.items() if tensor_rank == 0 or tensor.spec.axis is not None}
    stored = {
        key: StoredTensor(
            tensor.spec.shape,
            str(tensor.values.dtype),
            (Shard(name, tuple(pieces(tensor.spec, tensor_rank, tensor_size))),),
        )
        for key, tensor in own.items()
    }
    record = write_tensors(partial / name, {key: tensor.values for key, tensor in own.items()})
    note = {"file": asdict(record), "tensors": {key: asdict(tensor) for key, tensor in stored.items()}}
    _note(partial, tensor_rank, stage).write_text(json.dumps(note), encoding="utf-8")


def write_manifest(partial: Path, run: Run, tensor_size: int, stages: int) -> Manifest:
    """Make the manifest of the notes that all writers left, and remove the notes."""
    notes = {(t, p): _note(partial, t, p) for p in range(stages) for t in range(tensor_size)}
    missing = [file_name(*place) for place, note in notes.items() if not note.exists()]
    if missing:
        raise ValueError(
            f"{partial}: {', '.join(missing)} did not arrive; --save must be a directory that all processes share"
        )
    contents = {file_name(*place): json.loads(note.read_text(encoding="utf-8")) for place, note in notes.items()}
    tensors = merge_tensors(
        {key: tensor_from(entry) for key, entry in content["tensors"].items()} for content in contents.values()
    )
    files = {name: FileRecord(**content["file"]) for name, content in contents.items()}
    manifest = Manifest(**{entry.name: getattr(run, entry.name) for entry in fields(Run)}, tensors=tensors, files=files)
    with (partial / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    for note in notes.values():
        note.unlink()
    return manifest


def _note(partial: Path, tensor_rank: int, stage: int) -> Path:
    return (partial / file_name(tensor_rank, stage)).with_suffix(".json")
