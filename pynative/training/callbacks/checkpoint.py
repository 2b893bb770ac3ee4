"""The callback that saves checkpoints every so many iterations and at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.folders import earlier_run, in_use, is_inside
from parallel_core.checkpoint.lock import FolderLock, InUse
from parallel_core.checkpoint.snapshot import HostMemory
from parallel_core.config import ConfigError, Finding
from pynative import parallel_state
from pynative.checkpointing import SaveFailed, save_checkpoint
from pynative.checkpointing.background import BackgroundSave, prepared_memory
from pynative.startup.log import log, warn
from pynative.timers import RECORDED
from pynative.training.callbacks.base import RunCallback, TrainingState


class CheckpointCallback(RunCallback):
    """Saves checkpoints to `directory` (--save) every `interval` iterations (--save-interval; None: never) and at the
    end, unless the last iteration's is there. The directory is locked for this run from `on_train_begin` to `close`.

    background (--async-save): training goes on while a checkpoint, unless it is the last, is written. Then callbacks
    behind this one must not change the weights at the end of a step before they call its `before_change`. may_fail
    (--on-save-failure warn): `SaveFailed` does not end the training, unless the checkpoint is the last.
    """

    def __init__(self, directory: Path, interval: int | None, background: bool = False, may_fail: bool = True) -> None:
        self.directory, self.interval, self.background, self.may_fail = directory, interval, background, may_fail
        self._memory = HostMemory()
        self._lock = FolderLock(directory)
        self._under_way: BackgroundSave | None = None
        self._saved_iteration: int | None = None
        self.unsaved_iteration: int | None = None
        """The iteration of the last checkpoint if that could not be written or, in the background, begun; None: it
        could."""

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint that was begun in the background is under way: it is not known yet to be published."""
        return self._under_way is not None

    def on_train_begin(self, state: TrainingState) -> None:
        """Lock the folder, which is made if it is not there, and remove leftovers of interrupted saves (on rank 0).
        Where the run does not go on from a checkpoint in it, the files of an earlier run there are moved aside. Raises
        `ConfigError` on rank 0 if that lock or removal fails, another job has the folder, or such an earlier run has
        checkpoints or the file that names the latest there and --overwrite-save is not given."""
        goes_on = is_inside(state.resumed_from, self.directory)
        if parallel_state.get_global_rank() == 0:
            self._take_directory(state, goes_on)
        if goes_on:
            self._saved_iteration = state.iteration  # A run that has no step left writes no new checkpoint.
        if self.background and self.interval:
            self._memory = prepared_memory(state)

    def _take_directory(self, state: TrainingState, goes_on: bool) -> None:
        """Lock the directory against other jobs, and move aside what an earlier run has left if this run begins anew.
        goes_on: the run resumed from a checkpoint in it. Raises `ConfigError` if it cannot be written to, another job
        has it, or another run has saved there (without --overwrite-save)."""
        try:
            self._lock.take(log)
            commit.clean(self.directory)
        except InUse as error:
            raise ConfigError([in_use(self.directory, error)]) from error
        except OSError as error:
            fix = "choose another directory"
            raise ConfigError([Finding("--save", str(self.directory), str(error.strerror), fix)]) from error
        left = [] if goes_on else commit.of_runs(self.directory)
        findings = [] if goes_on else list(earlier_run(self.directory, state.config.training_config.checkpoint))
        if findings:
            raise ConfigError(findings)
        if left:
            names = ", ".join(path.name for path in left)
            log(f"Moved what an earlier run has left ({names}) to {commit.set_aside(self.directory, left)}")

    def before_change(self, state: TrainingState) -> None:
        """Finish the copies of tensors for the checkpoint under way, if there is one: the tensors are about to
        change."""
        if self._under_way is not None:
            self._under_way.finish_copies()

    def before_save(self, state: TrainingState) -> None:
        """Finish the checkpoint under way, as `finish` does, before the next one is begun, here or by a script."""
        self.finish(state)

    def on_step_end(self, state: TrainingState) -> None:
        if self._under_way is not None:
            self._under_way.check_copies()
            with self._tolerating(self.may_fail):
                if self._under_way.advance():
                    self._saved(state, self._under_way.path)
        if self.interval and state.iteration % self.interval == 0:
            self._save(state, self.background, self.may_fail)

    def on_train_end(self, state: TrainingState) -> None:
        self.finish(state)
        if self._saved_iteration != state.iteration:
            self._save(state, background=False, may_fail=False)

    def close(self) -> None:
        self._lock.release()

    def _save(self, state: TrainingState, background: bool, may_fail: bool) -> None:
        self.finish(state)
        state.step_cell.buffers.finish_param_sync()
        self._saved_iteration = self.unsaved_iteration = state.iteration
        with self._tolerating(may_fail), state.step_cell.timers("save-checkpoint", RECORDED):
            if background:
                self._under_way = BackgroundSave(self.directory, state, self._memory)
            else:
                self._saved(state, save_checkpoint(self.directory, state))
            self.unsaved_iteration = None

    def finish(self, state: TrainingState) -> None:
        """Wait until the checkpoint under way, if there is one, is published or could not be written: then, with
        `may_fail` warn, else raise `SaveFailed`. All ranks call this."""
        if self._under_way is not None:
            with self._tolerating(self.may_fail):
                self._under_way.finish()
                self._saved(state, self._under_way.path)

    @contextmanager
    def _tolerating(self, may_fail: bool) -> Iterator[None]:
        """Warn of a SaveFailed in the block and go on if `may_fail`, else raise it; the next save is tried at its
        time."""
        try:
            yield
        except SaveFailed as error:
            self._under_way = self._saved_iteration = None
            if not may_fail:
                raise
            warn(f"NOT SAVED: {error}. Training goes on without this checkpoint (--on-save-failure warn)")

    def _saved(self, state: TrainingState, path: Path) -> None:
        self._under_way = None
        asked = state.config.training_config.checkpoint.ckpt_format
        kind = "MindSpore's files" if asked == "ckpt" else "safetensors"
        log(f"Saved checkpoint {path} ({kind} and a manifest, for --ckpt-format {asked})")
