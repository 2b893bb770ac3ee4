"""Reading one of our checkpoints: any rank's shard in any layout, assembled from the files that hold parts of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from parallel_core.checkpoint.layout import Copy, overlap
from parallel_core.checkpoint.manifest import Manifest, Shard, StoredTensor
from parallel_core.checkpoint.mindspore_file import open_tensors
from parallel_core.checkpoint.networks import differences
from parallel_core.checkpoint.tensor_file import damage
from parallel_core.config import AllConfig
from parallel_core.config.serialise import config_for_inference
from parallel_core.numerics.dtypes import FLOATS, Array
from parallel_core.sharding import Box, Place, ShardSpec

_WIDENED = (*FLOATS, "float64")
"""Types that a stored weight or state may have."""


@dataclass(frozen=True)
class Vocabulary:
    """Two sizes of a vocabulary: `unpadded`, the number of ids, and `padded`, the number of rows of the embedding
    table, padding included. None: not known."""

    unpadded: int | None
    padded: int | None


class CheckpointReader:
    """The reader of one checkpoint's directory, into a model with the given vocabulary (None: the stored one). Raises
    ValueError if the directory has no manifest that can be read."""

    def __init__(self, directory: Path, vocabulary: Vocabulary | None = None) -> None:
        self.directory = directory
        self.manifest = Manifest.read(directory)
        stored = self.manifest.config.get("model_config", {})
        self.stored_vocabulary = Vocabulary(stored.get("unpadded_vocab_size"), stored.get("vocab_size"))
        self._vocabulary = vocabulary or self.stored_vocabulary
        self._open = cache(lambda name: open_tensors(directory / name))
        self.notes: list[str] = []
        """Notes about another tool's settings that are not taken over and may describe the network; none for our own
        checkpoint."""

    def damaged_files(self, share: int = 0, shares: int = 1) -> list[str]:
        """Sentences, one for each damaged file: it is missing, cannot be read, has another size, or, where the
        manifest holds its checksums, is no readable file of tensors or has other bytes than were written.

        Reading everything takes time, so ranks can divide the files: `share` (from 0) of `shares` looks at every
        `shares`-th file, from its number on.
        """
        files = list(self.manifest.files.items())[share::shares]
        found = (damage(self.directory / name, record, open_tensors) for name, record in files)
        return list(filter(None, found))

    @property
    def unverified_files(self) -> list[str]:
        """Names of files without checksums, in which changed values would not be found; the manifest's among them if it
        has no digest."""
        return self.manifest.unverified

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of this name."""
        return name in self.manifest.tensors

    def problem(self, name: str, spec: ShardSpec) -> str | None:
        """The sentence of `shape_problem`, or one saying why the files do not hold the tensor `name` as the manifest
        says, by their headers; None if there is neither. Values are not read."""
        tensor = self.manifest.tensors.get(name)
        of_storage = None if tensor is None else self._storage_problem(name, tensor)
        return self.shape_problem(name, spec) or of_storage

    def shape_problem(self, name: str, spec: ShardSpec) -> str | None:
        """A sentence saying that the tensor `name` is missing from the manifest, does not fit `spec`, or is of no
        floating-point type; None if it fits. No file is read. Another number of rows fits, too, if it and the
        spec's are the padded sizes of the stored and the model's vocabulary, and both have the same number of ids."""
        tensor = self.manifest.tensors.get(name)
        if tensor is None:
            return f"{name}: the model has it, the checkpoint {self.directory} does not"
        if tensor.shape != spec.shape and not self._is_padded_otherwise(tensor.shape, spec.shape):
            return (
                f"{name}: {list(tensor.shape)} in {self.directory}, {list(spec.shape)} in the model; give the flags of "
                f"the run that saved it"
            )
        if tensor.dtype not in _WIDENED:
            return f"{name}: is {tensor.dtype} in {self.directory}, the model has floating-point numbers"
        return None

    @property
    def begins(self) -> bool:
        """Whether the checkpoint is of iteration 0 and without an optimizer."""
        return self.manifest.optimizer is None and self.manifest.iteration == 0

    @property
    def holds_a_run(self) -> bool:
        """Whether the checkpoint has an optimizer, or an iteration above 0."""
        return not self.begins

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank adapters are stored beside the weights, by the stored configuration."""
        return bool(self.manifest.config.get("lora_config", {}).get("lora_rank"))

    @cached_property
    def config(self) -> AllConfig:
        """The configuration of the model that was saved, with its adapters and tokenizer, on one process and without
        options of its training (`config_for_inference`). Raises ValueError for an option that this version does not
        know, or a value that it does not take."""
        return config_for_inference(self.manifest.config)

    def settings_problems(self, config: AllConfig) -> list[str]:
        """Sentences, one for each setting of the network that acts both in `config` and in the checkpoint's
        configuration and differs; if there are none, one for each that acts in only one of the two and differs. Raises
        ValueError as the property `config`."""
        found = differences(config, self.config)
        return [f"{difference}: the checkpoint {self.directory} has {difference.other}" for difference in found]

    def _storage_problem(self, name: str, tensor: StoredTensor) -> str | None:
        """A sentence saying why the files do not hold a tensor as the manifest says; None if they do."""
        wrong = (self._shard_problem(name, shard) for shard in tensor.shards)
        return next(filter(None, wrong), None if tensor.is_complete else f"{name}: not whole in {self.directory}")

    def _is_padded_otherwise(self, stored: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
        """Whether the two shapes are of one table with a row for each id, padded as this checkpoint and as the
        model."""
        if self._vocabulary.unpadded != self.stored_vocabulary.unpadded or not stored or not wanted:
            return False
        rows = (stored[0], wanted[0])
        return rows == (self.stored_vocabulary.padded, self._vocabulary.padded) and stored[1:] == wanted[1:]

    def _shard_problem(self, name: str, shard: Shard) -> str | None:
        try:
            file = self._open(shard.file)
            shape = file.shape(name)
            dtype = None if shape is None else file.tensor(name).dtype
        except ValueError as error:
            return str(error)
        ends = [tuple(a + n for a, n in zip(box.at, box.shape, strict=True)) for box in shard.pieces]
        needed = tuple(map(max, zip(*ends, strict=True)))
        if shape != needed:
            found = "is not there" if shape is None else f"has shape {list(shape)}"
            return f"{self.directory / shard.file}: {name} {found}, the manifest says {list(needed)}"
        said = self.manifest.tensors[name].dtype
        return None if dtype == said else f"{file.path}: {name} is {dtype}, the manifest says {said}"

    def read(self, name: str, place: Place, out: Array) -> Array:
        """Write a rank's shard of a tensor, from whatever layout it was saved in, into `out`, of the shard's shape, and
        return `out`. Padding that the checkpoint lacks keeps the values it has in `out`.

        Raises KeyError for a name that the checkpoint lacks, ValueError for a file that cannot be read, AssertionError
        if `out` is not of the shard's shape.
        """
        assert out.shape == place.shape, (name, out.shape, place)
        for shard, copies in _copies(self.manifest.tensors[name], place.boxes):
            stored = self._open(shard.file).array(name)
            for copy in copies:
                out[copy.target] = stored[copy.source]
        return out


def _copies(tensor: StoredTensor, wanted: Sequence[Box]) -> list[tuple[Shard, list[Copy]]]:
    """(shard of a file, copies to make from it) for each file that has a part of the wanted boxes."""
    planned = []
    for shard in tensor.shards:
        copies = (overlap(source, target) for source in shard.pieces for target in wanted)
        planned.append((shard, [copy for copy in copies if copy is not None]))
    within = (overlap(Box.whole(tensor.shape), target) for target in wanted)
    expected = sum(copy.size for copy in within if copy is not None)
    assert sum(copy.size for _, copies in planned for copy in copies) == expected, "shards do not add up to the tensor"
    return [(shard, copies) for shard, copies in planned if copies]
