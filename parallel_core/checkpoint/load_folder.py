"""Whether what --load and --lora-load name is there, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parallel_core.checkpoint.convert.reader import find_checkpoint, holds_checkpoint
from parallel_core.config import AllConfig
from parallel_core.config.checkpoint import CheckpointConfig
from parallel_core.findings import Finding


def is_first_start(directory: Path, checkpoint: CheckpointConfig) -> bool:
    """Whether nothing was saved yet in the folder to load from, which is --save's, and need not be."""
    save = checkpoint.output_dir
    if save is None or checkpoint.exit_on_missing_checkpoint or checkpoint.resume_training:
        return False
    return directory.resolve() == Path(save).resolve() and not holds_checkpoint(directory)


def load_findings(config: AllConfig) -> Iterator[Finding]:
    """Folders that are named and are not there, or are no checkpoint."""
    checkpoint, lora = config.training_config.checkpoint, config.lora_config
    whole = checkpoint.load_checkpoint
    if whole is not None and not is_first_start(Path(whole), checkpoint):
        kind = "hf" if checkpoint.convert_from_huggingface else "auto"
        yield from _missing("--load", whole, checkpoint.ckpt_step, kind)
    if lora.use_lora and lora.lora_load is not None:
        yield from _missing("--lora-load", lora.lora_load)


def unreadable(flag: str, directory: str, error: ValueError) -> Finding:
    """That a checkpoint is not there, or cannot be read."""
    rule = str(error).removeprefix(f"--load {directory}: ").removeprefix(f"{directory}: ")
    return Finding(flag, directory, rule, "" if ";" in rule else "give the path of a checkpoint, or leave it out")


def _missing(flag: str, directory: str, step: int | None = None, kind: str = "auto") -> Iterator[Finding]:
    try:
        find_checkpoint(Path(directory), step, kind)
    except ValueError as error:
        yield unreadable(flag, directory, error)
