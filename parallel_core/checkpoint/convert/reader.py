"""Another tool's checkpoint read as if it were ours: `--load` of its folder converts while it reads."""

from pathlib import Path

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.formats import damages
from parallel_core.checkpoint.convert.huggingface.config import UNKNOWN
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.convert.native import run_of
from parallel_core.checkpoint.layout import overlap
from parallel_core.checkpoint.manifest import Manifest, StoredTensor
from parallel_core.checkpoint.reader import CheckpointReader, Vocabulary
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import Box, Place


class ConvertedReader(CheckpointReader):
    """A reader of ranks' shards out of another tool's checkpoint, which was read as a `Model`, for a network with the
    given vocabulary (None: the checkpoint's)."""

    def __init__(self, directory: Path, model: Model, vocabulary: Vocabulary | None = None) -> None:
        self.directory = directory
        self._tensors = dict(model.all_tensors())
        tensors = {name: StoredTensor(tensor.shape, tensor.dtype, ()) for name, tensor in self._tensors.items()}
        self.manifest = Manifest(**vars(run_of(model)), tensors=tensors)
        self.notes = [f"{', '.join(keys)}: {UNKNOWN}" for what, keys in model.left_out.items() if what == UNKNOWN]
        ids: int | None = model.network.get("unpadded_vocab_size")
        if vocabulary is not None and vocabulary.unpadded is not None and vocabulary.unpadded <= model.vocab_size:
            ids = vocabulary.unpadded  # other tools' files do not say which rows are padding
        self.stored_vocabulary = Vocabulary(ids, model.vocab_size)
        self._vocabulary = vocabulary or self.stored_vocabulary

    @property
    def holds_a_run(self) -> bool:
        """Whether the optimizer's states were read, so that a run can go on with them."""
        return self.manifest.optimizer is not None

    @property
    def unverified_files(self) -> list[str]:
        """Always empty: that other tools' files can lack checksums is not worth a warning."""
        return []

    def damaged_files(self, share: int = 0, shares: int = 1) -> list[str]:
        """Sentences about files that differ from their checksums, or should be archives of torch.save and are none;
        safetensors of other tools have no checksums. Ranks can divide the files: this is share number `share`, from 0,
        of `shares`."""
        return list(damages(self.directory, share, shares))

    def _storage_problem(self, name: str, tensor: StoredTensor) -> str | None:
        return None

    def read(self, name: str, place: Place, out: Array) -> Array:
        """Write a rank's shard of a tensor into `out`, of the shard's shape, and return `out`. Padding that the
        checkpoint lacks keeps the values it has in `out`. Raises KeyError for a name that the checkpoint lacks."""
        tensor = self._tensors[name]
        for box in place.boxes:
            copy = overlap(Box.whole(tensor.shape), box)
            if copy is not None:
                out[copy.target] = tensor.sliced(copy.source).widened()
        return out


def holds_checkpoint(directory: Path) -> bool:
    """Whether a folder is a checkpoint of ours or of another tool, has a file that names the latest one, or has one of
    ours that looks whole."""
    try:
        formats.recognise(directory)
    except ValueError:
        return commit.has_checkpoint(directory)
    return True


def find_checkpoint(directory: Path, step: int | None = None, kind: str = "auto") -> tuple[formats.Format, Path]:
    """(format, folder of the iteration) of the checkpoint that `--load directory` means. step: its iteration; None: the
    latest one in `directory`, or `directory` itself. kind: a value of `Format.kind`, or "auto". Raises ValueError if
    none is found, OSError if the folder or the file that names the latest cannot be read."""
    if not directory.is_dir():
        raise ValueError(f"--load {directory}: there is no such folder")
    one, *_ = formats.FORMATS
    try:
        one, folder = formats.recognise(directory, kind, step)
    except ValueError:
        if kind != "auto":
            raise
    return one, commit.find(directory, step) if one.kind == "native" else folder


def open_checkpoint(
    directory: Path,
    step: int | None = None,
    vocabulary: Vocabulary | None = None,
    *,
    kind: str = "auto",
    optimizer: bool = True,
) -> CheckpointReader:
    """A reader of the checkpoint that `--load directory` means, of whichever tool or of one `kind`. step, kind: as for
    `find_checkpoint`. vocabulary: of the model that is loaded; None: the checkpoint's. optimizer: whether another
    tool's optimizer is read, too (never that of Megatron's folder `release`). Raises ValueError if none is found or its
    content is wrong, OSError as `find_checkpoint` and if another tool's file cannot be read."""
    one, folder = find_checkpoint(directory, step, kind)
    if one.kind == "native":
        return _native(folder, vocabulary)
    with formats.told_of(folder, one.name):
        is_release = folder.name == formats.RELEASE  # as in Megatron, a release begins at iteration 0
        model = formats.read(folder, one.kind, optimizer=optimizer and not is_release)
        if is_release:
            model.position.iteration = 0
        return ConvertedReader(folder, model, vocabulary)


def _native(folder: Path, vocabulary: Vocabulary | None) -> CheckpointReader:
    try:
        return CheckpointReader(folder, vocabulary)
    except ValueError as error:
        raise ValueError(f"{error}; {commit.another(folder)}") from error
