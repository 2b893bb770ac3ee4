"""Saving: the first rank that holds a shard writes it, one file a writer; rank 0 publishes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.huggingface.write import add_huggingface
from parallel_core.checkpoint.manifest import OptimizerRecord, Run
from parallel_core.checkpoint.writer import FileNames, LocalTensor, write_manifest, write_part, writers
from parallel_core.config import AllConfig
from parallel_core.config.checkpoint import CheckpointConfig
from pynative import parallel_state
from pynative.checkpointing.local_tensors import is_divided, local_tensors, saved_optimizer
from pynative.checkpointing.state import RunState, named
from pynative.optimizer.optimizer import FlatOptimizer
from pynative.tensor_parallel.random import get_rng_tracer

TOKENIZER_FILES = ("vocab_file", "merge_file", "tokenizer_model")


def save_checkpoint(directory: Path, state: RunState, keep: int | None = None, names: FileNames | None = None) -> Path:
    """Write `directory`/iter_<iteration> and make it the latest; all ranks call this. Its path.

    A checkpoint of the same iteration is replaced. Returns when it is on the disk. keep: how many are left there, and
    names: of the files, by default what the configuration says.
    """
    world, saving = parallel_state.get_world_group(), Saving.begin(directory, state, keep, names)
    saving.write()
    world.barrier()
    saving.publish()
    world.barrier()
    return saving.path


@dataclass(frozen=True, kw_only=True)
class Saving:
    """A checkpoint that is being saved: all ranks `write`, and when all have, `publish`.

    Both touch files alone, so that another thread can do them.
    """

    directory: Path
    iteration: int
    is_publisher: bool
    """Rank 0 is: the others' `publish` does nothing."""
    file: str | None
    """This rank's; none: another rank writes what it holds."""
    tensors: dict[str, LocalTensor]
    run: Run
    files: tuple[str, ...]
    """All writers'."""
    config: CheckpointConfig
    keep: int

    @classmethod
    def begin(
        cls,
        directory: Path,
        state: RunState,
        keep: int | None = None,
        names: FileNames | None = None,
    ) -> Saving:
        """Make its folder and take up what there is to write; all ranks call this. Tensors are read when they are
        written, and so must not change until then."""
        for callback in state.callbacks:
            callback.before_save(state)
        world, config = parallel_state.get_world_group(), state.config.training_config.checkpoint
        places = writers(parallel_state.get_topology(), sharded=is_divided(state))
        names = names or FileNames(config.ckpt_format == "ckpt", config.prefix)
        files = {rank: names.of(rank, place, state.iteration) for rank, place in places.items()}
        tensors, run = local_tensors(state), _run(state)
        if world.rank == 0:
            with _explained(directory, tensors):
                commit.begin(directory, state.iteration)
        world.barrier()
        return cls(
            directory=directory,
            iteration=state.iteration,
            is_publisher=world.rank == 0,
            file=files.get(world.rank),
            tensors=tensors,
            run=run,
            files=tuple(files.values()),
            config=config,
            keep=_kept(config) if keep is None else keep,
        )

    @property
    def path(self) -> Path:
        """Of the whole checkpoint."""
        return self.directory / commit.checkpoint_name(self.iteration)

    def write(self) -> None:
        """This rank's file. Raises OSError, naming folder, need and newest whole checkpoint, if it cannot be."""
        if self.file is not None:
            with _explained(self.directory, self.tensors):
                write_part(commit.partial_directory(self.directory, self.iteration), self.file, self.tensors)

    def publish(self) -> None:
        """Manifest, name, and the pointer to the latest. Raises as `write` does."""
        if not self.is_publisher:
            return
        partial = commit.partial_directory(self.directory, self.iteration)
        with _explained(self.directory, self.tensors):
            write_manifest(partial, self.run, self.files)
            if self.config.convert_to_huggingface:
                add_huggingface(partial, self.config.huggingface_model_type)
            commit.publish(self.directory, self.iteration, self.keep, self.config.save_retain_interval)


@contextmanager
def _explained(directory: Path, tensors: dict[str, LocalTensor]) -> Iterator[None]:
    """What the system refuses, said with the folder, what this rank writes, and what there is to resume from."""
    try:
        yield
    except OSError as error:
        needed = sum(tensor.values.nbytes for tensor in tensors.values())
        raise OSError(error.errno, commit.cannot_write(directory, needed, error)) from error


def _kept(config: CheckpointConfig) -> int:
    return config.keep_checkpoint_max if config.save_retain_interval is None else 1


def _record(optimizer: FlatOptimizer) -> OptimizerRecord:
    return OptimizerRecord(optimizer.config.optimizer_type, optimizer.steps, optimizer.state_names)


def _run(state: RunState) -> Run:
    training, scheduler, optimizer = state.config.training_config, state.step_cell.scheduler, saved_optimizer(state)
    scaler = None if optimizer is None else optimizer.grad_scaler
    return Run(
        iteration=state.iteration,
        consumed_samples=state.consumed_samples,
        topology=_topology(),
        config=_config(state.config),
        scheduler=scheduler.state_dict() if scheduler else {},
        optimizer=None if optimizer is None else _record(optimizer),
        loss_scaler=None if scaler is None else scaler.state_dict(),
        rng=None if training.checkpoint.no_save_rng else {"seed": get_rng_tracer().seed},
        state={name: _plain(name, kept) for name, one in named(state.callbacks).items() if (kept := one.state_dict())},
    )


def _plain(callback: str, kept: dict[str, Any]) -> dict[str, Any]:
    """A copy of what a callback keeps. Raises ValueError if it is not what a manifest can hold."""
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{callback}.state_dict: {error}; give numbers, strings, lists and dicts of them") from error
    return deepcopy(kept)


def _topology() -> dict[str, int]:
    sizes = asdict(parallel_state.get_topology())
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _config(config: AllConfig) -> dict:
    """The configuration; the tokenizer's files by their absolute path, for a reader that is started elsewhere."""
    sections = config.to_dict()
    files = {name: sections["dataset_config"][name] for name in TOKENIZER_FILES}
    sections["dataset_config"] |= {name: path and str(Path(path).absolute()) for name, path in files.items()}
    return sections
