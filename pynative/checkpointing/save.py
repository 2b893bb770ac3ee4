"""Saving: the first rank that holds a shard writes it, one file for each writer; rank 0 publishes the checkpoint."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.huggingface.write import add_huggingface
from parallel_core.checkpoint.lock import FolderLock
from parallel_core.checkpoint.manifest import OptimizerRecord, Run
from parallel_core.checkpoint.writer import FileNames, LocalTensor, write_manifest, write_part, writers
from parallel_core.config import AllConfig
from parallel_core.config.checkpoint import CheckpointConfig
from pynative import parallel_state
from pynative.checkpointing.agreement import SaveFailed, on_all_ranks
from pynative.checkpointing.local_tensors import is_divided, local_tensors, saved_optimizer
from pynative.checkpointing.state import RunState, named
from pynative.startup.log import log, warn
from pynative.tensor_parallel.random import get_rng_tracer

TOKENIZER_FILES = ("vocab_file", "merge_file", "tokenizer_model")


PAUSES_SECONDS = (1.0, 4.0)
"""Pauses in seconds before a file is tried to be written again."""


def save_checkpoint(directory: Path, state: RunState, keep: int | None = None, names: FileNames | None = None) -> Path:
    """Write `directory`/iter_<iteration, at least seven digits>, make it the latest, and return its path; all ranks
    call this.

    The run's own checkpoint of the same iteration is replaced, any other moved aside. Returns when it is on the disk.
    keep: the number, at least 1, of the run's newest checkpoints that are left in `directory`, beside the newest whole
    one and those that --save-retain-interval keeps; None: --keep-checkpoint-max (by default all), or 1 with
    --save-retain-interval. names: the form of the files' names; None: the configuration's. Raises `SaveFailed` on all
    ranks if one cannot write, or if another job writes there; ValueError for values assigned to an empty slot of ZeRO
    stage 3, for a callback's state that a manifest (JSON) cannot hold, for a tensor whose type is none of DTYPES, for a
    model that cannot become HuggingFace's files if these are asked for, and if a file's note (`write_part`) is missing.
    """
    with Saving.begin(directory, state, keep, names) as saving:
        on_all_ranks(saving.path, saving.write)
        on_all_ranks(saving.path, saving.publish)
    return saving.path


@dataclass(frozen=True, kw_only=True)
class Saving:
    """A checkpoint that is being saved: all ranks call `write`, when all have, `publish`, and in any case `end`; these
    three methods use no collective.

    `is_publisher`: this is rank 0; `file`: the name of this rank's file, None: it writes none; `tensors`: those that
    this rank writes, by name; `run`: the manifest's account of the run; `files`: the names of all writers' files;
    `keep`: the number of the run's newest checkpoints that stay, beside the newest whole one and those that
    --save-retain-interval keeps, None: all; `lock`: that of `directory`.
    """

    directory: Path
    iteration: int
    is_publisher: bool
    """Whether this is rank 0; the other ranks' `publish` does nothing."""
    file: str | None
    """The name of this rank's file; None: other ranks write all that it holds."""
    tensors: dict[str, LocalTensor]
    run: Run
    files: tuple[str, ...]
    """The names of all writers' files."""
    config: CheckpointConfig
    keep: int | None
    lock: FolderLock
    """The lock of `directory`, which the publisher takes for this save, unless the run has it already."""

    @classmethod
    def begin(
        cls,
        directory: Path,
        state: RunState,
        keep: int | None = None,
        names: FileNames | None = None,
    ) -> "Saving":
        """Call the callbacks' `before_save` and list what this rank will write; rank 0 also locks `directory`, moves
        another run's checkpoint of this iteration aside, and makes a hidden folder for the new one. All ranks call
        this. Tensors must not change until they are written (`local_tensors`). keep, names: as for `save_checkpoint`.
        Raises `SaveFailed` on all ranks if the folder cannot be made or another job writes there; ValueError as
        `local_tensors`, and for a callback's state that a manifest (JSON) cannot hold."""
        for callback in state.callbacks:
            callback.before_save(state)
        world, config = parallel_state.get_world_group(), state.config.training_config.checkpoint
        places = writers(parallel_state.get_topology(), sharded=is_divided(state))
        names = names or FileNames(config.ckpt_format == "ckpt", config.prefix)
        files = {rank: names.of(rank, place, state.iteration) for rank, place in places.items()}
        saving = cls(
            directory=directory,
            iteration=state.iteration,
            is_publisher=world.rank == 0,
            file=files.get(world.rank),
            tensors=local_tensors(state),
            run=_run(state),
            files=tuple(files.values()),
            config=config,
            keep=_kept(config) if keep is None else keep,
            lock=FolderLock(directory),
        )
        try:
            on_all_ranks(saving.path, saving._prepare)
        except SaveFailed:
            saving.end()
            raise
        return saving

    def __enter__(self) -> "Saving":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def path(self) -> Path:
        """The folder of the published checkpoint."""
        return self.directory / commit.checkpoint_name(self.iteration)

    @property
    def _partial(self) -> Path:
        return commit.partial_directory(self.directory, self.iteration)

    def _prepare(self) -> None:
        if self.is_publisher:
            self.lock.take(log)
            self._persistently(self._make_folder)

    def _make_folder(self) -> None:
        assert self.run.run_id is not None
        aside = commit.make_way(self.directory, self.iteration, self.run.run_id)
        if aside is not None:
            log(f"Moved {self.path}, which another run has written, to {aside}")
        commit.begin(self.directory, self.iteration)

    def write(self) -> None:
        """Write this rank's file, if it has one. If three tries fail, raises OSError, which names the folder, the bytes
        that this rank writes and the newest whole checkpoint, if any; ValueError for a tensor whose type is none of
        DTYPES."""
        if self.file is not None:
            file = self.file
            self._persistently(lambda: write_part(self._partial, file, self.tensors))

    def publish(self) -> None:
        """Write the manifest and, if the configuration asks for them, HuggingFace's files, rename the folder, point to
        it as the latest, and delete surplus checkpoints, on rank 0; nothing on other ranks. If three tries of one of
        these, but for the deletion, fail, raises OSError as `write`; ValueError if the note (`write_part`) of a
        writer's file is missing, and as `add_huggingface`. Warns of a checkpoint that cannot be deleted."""
        if not self.is_publisher:
            return
        self._persistently(lambda: write_manifest(self._partial, self.run, self.files))
        if self.config.convert_to_huggingface:
            self._persistently(lambda: add_huggingface(self._partial, self.config.huggingface_model_type))
        self._persistently(lambda: commit.publish(self.directory, self.iteration))
        self._delete_surplus()

    def end(self) -> None:
        """On rank 0: if this process still has the lock of `directory` and the checkpoint's hidden folder is there,
        remove leftovers of interrupted saves (`commit.clean`), as far as that can be done; then release the lock if
        this save took it. Nothing on other ranks."""
        if not self.is_publisher:
            return
        with suppress(OSError):
            if self.lock.is_held and self._partial.exists():
                commit.clean(self.directory)
        self.lock.release()

    def _delete_surplus(self) -> None:
        retain = self.config.save_retain_interval
        if self.keep is None:
            return
        assert self.run.run_id is not None
        reason = f"--save-retain-interval {retain}" if retain else f"--keep-checkpoint-max {self.keep}"
        try:
            for path in commit.surplus(self.directory, self.path, self.run.run_id, self.keep, retain):
                log(f"Deleting checkpoint {path} ({reason})")
                commit.delete(path)
        except OSError as error:
            warn(f"--save {self.directory}: {error}; the next save tries again to delete it")

    def _persistently(self, work: Callable[[], Any]) -> None:
        """Run `work`, and again after each of PAUSES_SECONDS if it raises OSError. The last error names the folder, the
        bytes that this rank writes, and the checkpoint to resume from."""
        for pause in (*PAUSES_SECONDS, None):
            try:
                work()
                return
            except OSError as refused:
                needed = sum(tensor.values.nbytes for tensor in self.tensors.values())
                error = OSError(refused.errno, commit.cannot_write(self.directory, needed, refused))
                if pause is None:
                    raise error from refused
                warn(f"{self.path}: {error}; tried again in {pause:g} s")
                time.sleep(pause)


def _kept(config: CheckpointConfig) -> int | None:
    return config.keep_checkpoint_max if config.save_retain_interval is None else 1


def _run(state: RunState) -> Run:
    training, scheduler, optimizer = state.config.training_config, state.step_cell.scheduler, saved_optimizer(state)
    record = scaler = None
    if optimizer is not None:
        record = OptimizerRecord(optimizer.config.optimizer_type, optimizer.steps, optimizer.state_names)
        scaler = optimizer.grad_scaler
    return Run(
        iteration=state.iteration,
        consumed_samples=state.consumed_samples,
        topology=_topology(),
        config=_config(state.config),
        scheduler=scheduler.state_dict() if scheduler else {},
        optimizer=record,
        loss_scaler=None if scaler is None else scaler.state_dict(),
        rng=None if training.checkpoint.no_save_rng else {"seed": get_rng_tracer().seed},
        run_id=state.run_id,
        state={name: _plain(name, kept) for name, one in named(state.callbacks).items() if (kept := one.state_dict())},
    )


def _plain(callback: str, kept: dict[str, Any]) -> dict[str, Any]:
    """A copy of a callback's state. Raises ValueError if a manifest (JSON) cannot hold it. callback: its name, for the
    message."""
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{callback}.state_dict: {error}; give numbers, strings, lists and dicts of them") from error
    return deepcopy(kept)


def _topology() -> dict[str, int]:
    sizes = asdict(parallel_state.get_topology())
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def _config(config: AllConfig) -> dict[str, Any]:
    """The configuration as the manifest has it; the tokenizer's files by their absolute path, for a reader that is
    started elsewhere."""
    sections = config.to_dict()
    files = {name: sections["dataset_config"][name] for name in TOKENIZER_FILES}
    sections["dataset_config"] |= {name: path and str(Path(path).absolute()) for name, path in files.items()}
    return sections
