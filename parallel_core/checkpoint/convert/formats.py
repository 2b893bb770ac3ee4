"""The formats of checkpoints, recognised by the files in their folders, and the checksums that these come with: those
in our manifest, and those in the zip archives of torch.save."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from parallel_core.checkpoint.commit import TRACKER, checkpoint_name
from parallel_core.checkpoint.convert.huggingface.read import is_huggingface, read_huggingface
from parallel_core.checkpoint.convert.megatron import torch_dist
from parallel_core.checkpoint.convert.megatron.legacy import is_legacy, read_legacy
from parallel_core.checkpoint.convert.megatron.torch_dist import is_torch_dist, read_torch_dist
from parallel_core.checkpoint.convert.model import VOCABULARY, Model
from parallel_core.checkpoint.convert.native import is_native, read_native
from parallel_core.checkpoint.convert.parameters import check_counts, check_parameters
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.checkpoint.torch_files import distributed
from parallel_core.checkpoint.torch_files.archive import damaged_entry
from parallel_core.system.files import read_plain


class Reader(Protocol):
    """A function that reads the model of a folder, with or without its optimizer."""

    def __call__(self, folder: Path, *, optimizer: bool = True) -> Model: ...


class Format(NamedTuple):
    """A format that can be read: `is_one` recognises the folder of one iteration."""

    kind: str
    """The value of --from that names the format."""
    name: str
    is_one: Callable[[Path], bool]
    read: Reader


FORMATS = (
    Format("native", "native", is_native, read_native),
    Format("megatron", "Megatron-LM's torch_dist", is_torch_dist, read_torch_dist),
    Format("megatron", "Megatron-LM's legacy", is_legacy, read_legacy),
    Format("hf", "HuggingFace's", is_huggingface, read_huggingface),
)
KINDS = ("native", "hf", "megatron")
RELEASE = "release"
"""Name of Megatron's folder for weights that were not trained by a run in this place, and the tracker's content
then."""


def recognise(directory: Path, kind: str = "auto", step: int | None = None) -> tuple[Format, Path]:
    """(format, folder with the files) of a checkpoint: the iteration in `directory` that `step` names; without `step`
    the one that its tracker names or, where there is none of a format that fits, `directory` itself. kind: a value of
    `Format.kind`, or "auto". Raises ValueError if there is no such folder, or no format fits, OSError if the folder or
    its tracker cannot be read."""
    if not directory.is_dir():
        rule = "is a file" if directory.exists() else "there is no such folder"
        raise ValueError(f"{directory}: {rule}; give the folder of a checkpoint")
    for folder in _candidates(directory, step):
        for one in FORMATS:
            if kind in ("auto", one.kind) and one.is_one(folder):
                return one, folder
    found = ", ".join(sorted(path.name for path in directory.iterdir())[:8]) or "nothing"
    raise ValueError(
        f"{directory}: no checkpoint of {'a known' if kind == 'auto' else 'this'} format; it holds {found}. Known are "
        f"ours (manifest.json), HuggingFace's (config.json and model.safetensors or pytorch_model.bin), Megatron-LM's "
        f"(mp_rank_*/model_optim_rng.pt, or .metadata and common.pt), or a folder whose {TRACKER} names one"
    )


def _candidates(directory: Path, step: int | None) -> Iterator[Path]:
    if step is not None:
        yield directory / checkpoint_name(step)
        return
    tracker = directory / TRACKER
    if tracker.is_file():
        word = read_plain(tracker).decode(errors="replace").strip()
        if word == RELEASE or re.fullmatch(r"[0-9]{1,18}", word):
            yield directory / (RELEASE if word == RELEASE else checkpoint_name(int(word)))
    yield directory  # last: checkpoints that were saved into this folder are newer than its own model


def read(directory: Path, kind: str = "auto", *, step: int | None = None, optimizer: bool = True) -> Model:
    """The model of the checkpoint in a folder, of whichever format or of one `kind` (--from). step: as for `recognise`.
    optimizer: its state, if there is one, is read, too, but for that of our adapters, which are merged into their
    weights. Raises ValueError if there is no checkpoint or its content is wrong, ValueError or OSError if a file cannot
    be read."""
    one, folder = recognise(directory, kind, step)
    with told_of(folder, one.name):
        model = one.read(folder, optimizer=optimizer)
        check_counts(model.settings, len(model.weights))
        if one.kind != "native":
            model.network.update(vocab_size=model.vocab_size, params_dtype=model.weights[VOCABULARY[0]].dtype)
            check_parameters(model, folder)
            if model.network["params_dtype"] == "float32":
                model.states.pop("main_param", None)  # Megatron's distributed optimizer stores the weights once more
        return model


def read_as_stored(one: Format, folder: Path) -> Model:
    """The model of a folder of the format `one`; adapters of our checkpoints are not merged into their weights. Raises
    ValueError or OSError as `read`."""
    if one.kind != "native":
        return read(folder, one.kind)
    with told_of(folder, one.name):
        return read_native(folder, merges=False)


_OF_CONTENT = KeyError, TypeError, AttributeError, IndexError, ArithmeticError, AssertionError, RecursionError
"""Errors that files with a wrong content lead to."""


@contextmanager
def told_of(folder: Path, name: str) -> Iterator[None]:
    """Turn a KeyError, TypeError, AttributeError, IndexError, ArithmeticError, AssertionError, RecursionError or
    ValueError of the block, which reads files of the format `name`, into a ValueError that names the folder; other
    errors pass as they are."""
    try:
        yield
    except _OF_CONTENT as error:
        raise ValueError(f"{folder}: not a whole checkpoint in {name} format ({error!r})") from error
    except ValueError as error:
        if str(folder) in str(error):
            raise
        raise ValueError(f"{folder}: in {name} format, but {error}") from error


def damages(folder: Path, share: int = 0, shares: int = 1) -> Iterator[str]:
    """Sentences about files whose bytes differ from their checksums, about files of torch.save that are no readable
    archives, and of our checkpoints about files that are missing or of another size; safetensors of other tools have no
    checksums. Ranks can divide the files: this is share number `share`, from 0, of `shares`. Raises ValueError if our
    manifest cannot be read, ValueError or OSError if a file of torch.save is missing or cannot be opened."""
    if is_native(folder):
        yield from CheckpointReader(folder).damaged_files(share, shares)
    for path, offset, length in [*_archives(folder)][share::shares]:
        entry = damaged_entry(path, offset, length)
        if entry is not None:
            yield f"{path}: {entry} (at byte {offset}) is not what was written; restore it or take another checkpoint"


def unverified(folder: Path) -> list[str]:
    """Names of files in `folder` that have no checksums: of one of our checkpoints those for which its manifest (made
    by hand) has none, and the manifest itself if it has no digest; of any other folder all safetensors files. Raises
    ValueError if our manifest cannot be read."""
    if is_native(folder):
        return CheckpointReader(folder).unverified_files
    return sorted(path.name for path in folder.glob("*.safetensors"))


def _archives(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """(file, offset, length) of each archive of torch.save in a folder; HuggingFace's are not read where there are
    safetensors, too."""
    if torch_dist.is_torch_dist(folder):
        yield from distributed.archives(folder)
    whole = [*folder.glob(torch_dist.COMMON), *folder.glob("mp_rank_*/*.pt")]
    if not any(folder.glob("*.safetensors")):
        whole += folder.glob("pytorch_model*.bin")
    yield from ((path, 0, path.stat().st_size) for path in sorted(whole))
