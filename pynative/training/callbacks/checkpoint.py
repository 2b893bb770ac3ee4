"""Save every so many iterations and at the end."""

import os
from pathlib import Path

from pynative.checkpointing import save_checkpoint
from pynative.log import log
from pynative.training.callbacks.base import Callback, TrainingState


class CheckpointCallback(Callback):
    """--save, --save-interval."""

    reads_parameters = False

    def __init__(self, directory: Path, interval: int | None) -> None:
        self.directory, self.interval = directory, interval
        self._saved_iteration: int | None = None

    def on_train_begin(self, state: TrainingState) -> None:
        """An unwritable place is found now, not after hours of training."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--save {self.directory}: {error.strerror}; choose another directory") from error
        if not os.access(self.directory, os.W_OK):
            raise ValueError(f"--save {self.directory}: not writable; choose another directory")

    def on_step_end(self, state: TrainingState) -> None:
        if self.interval and state.iteration % self.interval == 0:
            self._save(state)

    def on_train_end(self, state: TrainingState) -> None:
        if self._saved_iteration != state.iteration:
            self._save(state)

    def _save(self, state: TrainingState) -> None:
        state.step_cell.buffers.finish_param_sync()
        path = save_checkpoint(self.directory, state)
        self._saved_iteration = state.iteration
        asked = state.config.training_config.checkpoint.ckpt_format
        log(f"Saved checkpoint {path} (safetensors and a manifest, for --ckpt-format {asked})")
