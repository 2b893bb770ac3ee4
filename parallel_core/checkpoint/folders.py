"""Checks of the folders that --load, --lora-load and --save name."""

import os
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

from parallel_core.checkpoint import commit, lock
from parallel_core.checkpoint.convert.reader import find_checkpoint, holds_checkpoint
from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.config import AllConfig
from parallel_core.config.checkpoint import CheckpointConfig
from parallel_core.findings import Finding

OUTPUT = "output"
"""The folder of figures of a run without --save."""


def is_inside(place: Path | str | None, folder: Path) -> bool:
    """Whether `place`, from which --load reads, is this folder or a run's checkpoint in it (iter_*, release), links
    resolved; False for None, and for other folders in it, such as `earlier_1`. A path directly in it that is not there
    counts as inside: loading tells of it."""
    if place is None:
        return False
    path = Path(place).absolute()
    parents = [one.parent.resolve() for one in (path, path.resolve()) if commit.is_of_a_run(one) or not one.exists()]
    return folder.resolve() in (path.resolve(), *parents)


def save_findings(config: AllConfig, looks_for_others: bool = False) -> Iterator[Finding]:
    """The first finding for a run that cannot save into --save as the folder is now: it cannot be written, is itself a
    checkpoint of ours, or an earlier run with which this one does not go on has saved there (`earlier_run`).
    looks_for_others: also if another process that writes there is found (`lock.holder`). There is none without --save,
    nor for a run that does not train (--skip-train)."""
    checkpoint = config.training_config.checkpoint
    if checkpoint.output_dir is None or config.training_config.skip_train:
        return
    root = Path(checkpoint.output_dir)
    other = lock.holder(root) if looks_for_others else None
    if problem := _unwritable(root):
        yield Finding("--save", str(root), problem, "choose another directory")
    elif (root / MANIFEST).exists():
        yield Finding("--save", str(root), "is a checkpoint itself", "give the directory around it, or another one")
    elif other is not None and not other.is_this:
        yield in_use(root, other)
    elif checkpoint.begins_anew or not is_inside(checkpoint.load_checkpoint, root):
        yield from earlier_run(root, checkpoint)


def in_use(root: Path, by: object) -> Finding:
    """The finding that another job writes into the folder of --save. by: its text describes that job."""
    fix = f"wait until it has ended, or give another directory; if it is no job of yours, remove {root / lock.LOCK}"
    return Finding("--save", str(root), f"is in use: {by}", fix)


def earlier_run(root: Path, checkpoint: CheckpointConfig) -> Iterator[Finding]:
    """The finding that an earlier run has saved in the folder of --save, for a run that the caller knows not to go on
    with that one; none with --overwrite-save, or if neither a checkpoint's folder (iter_*, release) nor a tracker file
    is there."""
    there = _of_checkpoints(root)
    if not there or checkpoint.overwrite_save:
        return
    numbers = [int(name.removeprefix("iter_")) for name in there if name.startswith("iter_")]
    what = f"iteration {max(numbers)}" if numbers else there[0]
    ways = [f"another directory, or --overwrite-save, which moves the earlier run to {root / commit.EARLIER}_*"]
    if not is_inside(checkpoint.load_checkpoint, root):
        ways.insert(0, f"--load {root} to go on")
    elif checkpoint.begins_anew:
        ways.insert(0, f"{'no --finetune' if checkpoint.finetune else '--resume-training'} to go on")
    elsewhere = checkpoint.load_checkpoint and not is_inside(checkpoint.load_checkpoint, root)
    begins = f"loads {checkpoint.load_checkpoint}" if elsewhere else "begins anew"
    rule = f"has {what} of an earlier run, and this run {begins}"
    yield Finding("--save", str(root), rule, f"give {', '.join(ways)}")


def _of_checkpoints(root: Path) -> list[str]:
    """Names of checkpoints in a folder, and of its tracker file."""
    return [path.name for path in commit.of_runs(root) if path.name not in (commit.METRICS, commit.EVENTS)]


def output_of(checkpoint: CheckpointConfig) -> Path:
    """The folder of a run's figures: that of --save; without it `output`, or the first of output_2, output_3, ... where
    another run, whose checkpoints this one does not load, has saved in those before."""
    if checkpoint.output_dir is not None:
        return Path(checkpoint.output_dir)
    folders = chain([Path(OUTPUT)], (Path(f"{OUTPUT}_{number}") for number in count(2)))
    return next(one for one in folders if is_inside(checkpoint.load_checkpoint, one) or not _of_checkpoints(one))


def _unwritable(root: Path) -> str | None:
    """A clause that says why nothing can be written into `root`; None if it seems possible."""
    there = next(path for path in (root.absolute(), *root.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        return f"{there} is no directory"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"


def is_first_start(directory: Path, checkpoint: CheckpointConfig) -> bool:
    """Whether the folder of --load is that of --save and has no checkpoint yet, so that the run begins without one;
    False with --exit-on-missing-checkpoint or --resume-training, which want a checkpoint."""
    save = checkpoint.output_dir
    if save is None or checkpoint.exit_on_missing_checkpoint or checkpoint.resume_training:
        return False
    return directory.resolve() == Path(save).resolve() and not holds_checkpoint(directory)


def load_findings(config: AllConfig) -> Iterator[Finding]:
    """Findings for --load and --lora-load in whose folders `find_checkpoint` finds no checkpoint (--load: of
    --ckpt-step, and with --enable-hf2mg-convert of HuggingFace's); none for --load at a first start
    (`is_first_start`), nor for --lora-load without adapters."""
    checkpoint, lora = config.training_config.checkpoint, config.lora_config
    whole = checkpoint.load_checkpoint
    if whole is not None and not is_first_start(Path(whole), checkpoint):
        kind = "hf" if checkpoint.convert_from_huggingface else "auto"
        yield from _missing("--load", whole, checkpoint.ckpt_step, kind)
    if lora.use_lora and lora.lora_load is not None:
        yield from _missing("--lora-load", lora.lora_load)


def unreadable(flag: str, directory: str, error: ValueError) -> Finding:
    """The finding for a flag whose checkpoint is not there or cannot be read, from the error that reading it raised."""
    rule = str(error).removeprefix(f"--load {directory}: ").removeprefix(f"{directory}: ")
    return Finding(flag, directory, rule, "" if ";" in rule else "give the path of a checkpoint, or leave it out")


def _missing(flag: str, directory: str, step: int | None = None, kind: str = "auto") -> Iterator[Finding]:
    try:
        find_checkpoint(Path(directory), step, kind)
    except ValueError as error:
        yield unreadable(flag, directory, error)
