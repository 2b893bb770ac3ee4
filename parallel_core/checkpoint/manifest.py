"""The manifest of a checkpoint: its tensors, the files that hold their parts, and the point that the run had
reached."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.layout import cover_problem
from parallel_core.checkpoint.tensor_file import FileRecord
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.sharding import Box
from parallel_core.system.files import plain_file, read_json

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Shard:
    """The boxes of a tensor that one file holds as one array."""

    file: str
    pieces: tuple[Box, ...]
    """Boxes of the whole tensor, each with its place (`at`) in the file's array."""


@dataclass(frozen=True)
class StoredTensor:
    """Shape and type of a whole tensor, and the shards of it that files hold."""

    shape: tuple[int, ...]
    dtype: str
    shards: tuple[Shard, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the shards' boxes have as many elements as the whole."""
        return sum(box.size for shard in self.shards for box in shard.pieces) == prod(self.shape)


@dataclass(frozen=True)
class OptimizerRecord:
    """The optimizer whose states were saved: its rule, its steps, and the names of states that a weight may have, whose
    tensors are called "<state>.<weight>"."""

    kind: str
    steps: int
    state: tuple[str, ...]


@dataclass(kw_only=True)
class Run:
    """The point that a run had reached, its parallel sizes (`topology`), its configuration, and states that are no
    tensors: of schedule, optimizer, random streams, loss scaler and, in `state`, of callbacks."""

    iteration: int
    consumed_samples: int
    topology: dict[str, int]
    """Name of a size, such as world_size or tp -> number of ranks."""
    config: dict[str, dict[str, Any]]
    """Section -> option -> value of the configuration."""
    scheduler: dict[str, Any]
    optimizer: OptimizerRecord | None = None
    """The optimizer's record; None: saved without it (--no-save-optim), or converted without it."""
    rng: dict[str, int] | None = None
    """The seed of random streams, under "seed"; None: saved without it (--no-save-rng), or converted."""
    loss_scaler: dict[str, Any] | None = None
    """The loss scaler's state; None: none was saved."""
    state: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of a callback -> its state, plain values."""
    run_id: str | None = None
    """Id of the run, which a run that goes on from the checkpoint keeps; None: not written by a run that had one."""


@dataclass(kw_only=True)
class Manifest(Run):
    """All that one checkpoint's manifest says: the run's part, and by name the tensors and the records of files."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    files: dict[str, FileRecord] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    digest: str | None = None
    """Digest of all other fields, as it was read; None: not read from a file, or from one without (made by hand)."""

    @property
    def weights(self) -> list[str]:
        """Names of the weights: of all tensors but those whose name up to its first dot is an optimizer state's."""
        states = self.optimizer.state if self.optimizer else ()
        return [name for name in self.tensors if name.partition(".")[0] not in states]

    def to_json(self) -> str:
        """The text of the manifest file, whose last entry is a digest of all others."""
        content = json.loads(as_json(self))
        del content[_DIGEST]
        sections = (content | {_DIGEST: _digest(content)}).items()
        return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(section)}" for name, section in sections) + "\n}"

    @property
    def unverified(self) -> list[str]:
        """Names of files whose records have no checksums, so that changed values would not be found; the manifest's own
        among them if no digest was read from it."""
        bare = [name for name, record in self.files.items() if not record.crc32]
        return bare if self.digest else [MANIFEST, *bare]

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """The manifest of a checkpoint's directory. Raises ValueError naming the file if it is missing or not readable,
        differs from its digest, if it has one, is of another version, or not possible (`check`)."""
        path = directory / MANIFEST
        try:
            content = read_json(plain_file(directory, MANIFEST))
            digest = content.pop(_DIGEST, None)
            is_changed = digest not in (None, _digest(content))
            version = content["format_version"]
            if version != FORMAT_VERSION:
                raise ValueError(f"format version {version}, this program reads {FORMAT_VERSION}")
            optimizer = content.pop("optimizer")
            manifest = cls(
                tensors={name: tensor_from(entry) for name, entry in content.pop("tensors").items()},
                files={name: FileRecord(**entry) for name, entry in content.pop("files").items()},
                optimizer=optimizer and OptimizerRecord(**optimizer | {"state": tuple(optimizer["state"])}),
                digest=digest,
                **content,
            )
            manifest.check(directory)
            if is_changed:
                raise ValueError("damaged: it does not say what was written")
            return manifest
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path}: not a readable manifest of a checkpoint ({error!r}); --load takes what --save was given, or "
                f"one of the iter_* directories in it"
            ) from error

    def check(self, directory: Path) -> None:
        """Raise ValueError if the manifest, which can come from anybody, has one of these faults: iteration, samples
        or steps are no counts, another part of the run is of a wrong type (values in tables mostly go unchecked), a
        folder called iter_ and at least seven digits has another number than the iteration, a file is a link or might
        lie outside of the directory, a checksum is no integer (a file may have none at all), or a tensor is of an
        unknown type or impossible shape, larger than all files, in a file that is not listed, or not covered exactly
        once by its shards. Some fields of a wrong type raise TypeError instead."""
        _check_run(self)
        named = re.fullmatch(r"iter_(\d{7,})", directory.name)
        if named and int(named[1]) != self.iteration:
            raise ValueError(f"it is of iteration {self.iteration}, its folder of another")
        for name, record in self.files.items():
            plain_file(directory, name)
            if not isinstance(record.crc32, dict) or not all(type(number) is int for number in record.crc32.values()):
                raise ValueError(f"{name}: {record.crc32!r} are no checksums of tensors")
        stored = sum(record.size for record in self.files.values())
        for name, tensor in self.tensors.items():
            if tensor.dtype not in DTYPES or not all(type(n) is int and 0 <= n < 1 << 62 for n in tensor.shape):
                raise ValueError(f"{name}: shape {list(tensor.shape)} of {tensor.dtype} is not possible")
            if prod(tensor.shape) * DTYPES[tensor.dtype].bytes > stored:
                raise ValueError(f"{name}: shape {list(tensor.shape)} is more than all files hold")
            unknown = {shard.file for shard in tensor.shards} - self.files.keys()
            problem = cover_problem(tensor.shape, [box for shard in tensor.shards for box in shard.pieces])
            if unknown or problem:
                raise ValueError(f"{name}: {problem or f'lies in {min(unknown)}, which is not a file of it'}")


_DIGEST = "digest"


def as_json(record: Any) -> str:
    """The JSON, in one line, of a dataclass or a table of them, with dataclasses inside as tables of their fields.
    Raises TypeError for other values that Python's `json` does not write."""
    return json.dumps(record, default=lambda one: {each.name: getattr(one, each.name) for each in fields(one)})


def _digest(content: Any) -> str:
    return blake2b(json.dumps(content).encode()).hexdigest()


def _check_run(run: Run) -> None:
    """Raise ValueError for a field whose type or value is none that a run writes."""
    optimizer = run.optimizer
    rng = {"seed": 0} if run.rng is None else run.rng
    scaler = {} if run.loss_scaler is None else run.loss_scaler
    counts = [run.iteration, run.consumed_samples, *([optimizer.steps] if optimizer else [])]
    tables: list[Any] = [run.topology, run.scheduler, rng, scaler, run.config, run.state]
    tables += [section for table in (run.config, run.state) if isinstance(table, dict) for section in table.values()]
    numbers = [number for table in (run.topology, rng) if isinstance(table, dict) for number in table.values()]
    names = [optimizer.kind, *optimizer.state] if optimizer else []
    names += [] if run.run_id is None else [run.run_id]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("its iteration, samples or steps are no counts")
    if not all(isinstance(table, dict) for table in tables) or not all(type(number) is int for number in numbers):
        raise ValueError("an entry of the run is of another kind than a run writes")
    if not all(isinstance(name, str) for name in names) or "seed" not in rng:
        raise ValueError("its optimizer, its random state or its name lacks something")


def tensor_from(entry: Mapping[str, Any]) -> StoredTensor:
    """A StoredTensor from its JSON form; its shape and type are not checked. Raises ValueError for a box whose numbers
    are no integers, KeyError for a missing entry; an entry of a wrong type may raise TypeError."""
    shards = (Shard(shard["file"], tuple(map(_box_from, shard["pieces"]))) for shard in entry["shards"])
    return StoredTensor(tuple(entry["shape"]), entry["dtype"], tuple(shards))


def _box_from(entry: Mapping[str, Any]) -> Box:
    numbers = [tuple(entry[field]) for field in ("start", "shape", "at")]
    if not all(type(n) is int for field in numbers for n in field):
        raise ValueError(f"{entry}: not a slice")
    return Box(*numbers)


def merge_tensors(parts: Iterable[Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    """Name -> tensor with the shards of all writers. Raises AssertionError if writers disagree on a tensor's shape or
    type, or its shards have fewer or more elements than the whole."""
    merged: dict[str, StoredTensor] = {}
    for part in parts:
        for name, tensor in part.items():
            known = merged.get(name)
            if known is not None:
                assert (known.shape, known.dtype) == (tensor.shape, tensor.dtype), f"ranks disagree on {name}"
                tensor = StoredTensor(known.shape, known.dtype, known.shards + tensor.shards)
            merged[name] = tensor
    incomplete = [name for name, tensor in merged.items() if not tensor.is_complete]
    assert not incomplete, f"the shards of {incomplete} do not add up to the whole"
    return merged
