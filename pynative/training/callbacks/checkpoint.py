"""Save every so many iterations and at the end."""

import os
from pathlib import Path

from parallel_core.checkpoint.snapshot import HostMemory
from pynative.checkpointing import save_checkpoint
from pynative.checkpointing.background import BackgroundSave, prepared_memory
from pynative.log import log
from pynative.training.callbacks.base import Callback, TrainingState


class CheckpointCallback(Callback):
    """--save, --save-interval; background (--async-save): training goes on while all but the last are written.

    Callbacks behind this one must then leave the weights alone at the end of a step; a script's stand before it.
    """

    reads_parameters = False

    def __init__(self, directory: Path, interval: int | None, background: bool = False) -> None:
        self.directory, self.interval, self.background = directory, interval, background
        self._memory = HostMemory()
        self._under_way: BackgroundSave | None = None
        self._saved_iteration: int | None = None

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written while training goes on."""
        return self._under_way is not None

    def on_train_begin(self, state: TrainingState) -> None:
        """An unwritable place is found now, not after hours of training."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--save {self.directory}: {error.strerror}; choose another directory") from error
        if not os.access(self.directory, os.W_OK):
            raise ValueError(f"--save {self.directory}: not writable; choose another directory")
        loaded = state.config.training_config.checkpoint.load_checkpoint
        if loaded is not None and Path(loaded).resolve() == self.directory.resolve():
            self._saved_iteration = state.iteration  # A run without a step to do leaves it as it is.
        if self.background and self.interval:
            self._memory = prepared_memory(state)

    def before_change(self, state: TrainingState) -> None:
        """What is being copied changes next."""
        if self._under_way is not None:
            self._under_way.finish_copies()

    def before_save(self, state: TrainingState) -> None:
        """A script may save between two steps, too."""
        self._finish(state)

    def on_step_end(self, state: TrainingState) -> None:
        if self._under_way is not None:
            self._under_way.check_copies()
            if self._under_way.advance():
                self._saved(state, self._under_way.path)
        if self.interval and state.iteration % self.interval == 0:
            self._save(state, self.background)

    def on_train_end(self, state: TrainingState) -> None:
        self._finish(state)
        if self._saved_iteration != state.iteration:
            self._save(state, background=False)

    def _save(self, state: TrainingState, background: bool) -> None:
        self._finish(state)
        state.step_cell.buffers.finish_param_sync()
        self._saved_iteration = state.iteration
        if background:
            self._under_way = BackgroundSave(self.directory, state, self._memory)
        else:
            self._saved(state, save_checkpoint(self.directory, state))

    def _finish(self, state: TrainingState) -> None:
        """There are never two writers."""
        if self._under_way is not None:
            self._under_way.finish()
            self._saved(state, self._under_way.path)

    def _saved(self, state: TrainingState, path: Path) -> None:
        self._under_way = None
        asked = state.config.training_config.checkpoint.ckpt_format
        kind = "MindSpore's files" if asked == "ckpt" else "safetensors"
        log(f"Saved checkpoint {path} ({kind} and a manifest, for --ckpt-format {asked})")
