"""The callback that writes to a file how far the jobs of a run have come."""

import os
import time
from pathlib import Path

from pynative.startup.log import warn
from pynative.training.callbacks.base import RunCallback, TrainingState
from pynative.training.callbacks.checkpoint import CheckpointCallback

NAME = "progress.txt"


class ProgressCallback(RunCallback):
    """--log-progress: appends a line to `folder`/progress.txt at the start of the job, and after a step in or before
    which a checkpoint was written (is_async: was begun in the background), as Megatron writes it; none if that failed
    in the `CheckpointCallback`. For rank 0 only, behind the callback that saves."""

    def __init__(self, folder: Path, is_async: bool) -> None:
        self.path, self._saved = folder / NAME, "Saving async checkpoint" if is_async else "Saved checkpoint"
        self._is_saving = False

    def on_train_begin(self, state: TrainingState) -> None:
        self._began, self._first = time.time(), state.consumed_samples
        self._append(state, "Starting job")

    def before_save(self, state: TrainingState) -> None:
        self._is_saving = True

    def on_step_end(self, state: TrainingState) -> None:
        if self._is_saving:
            self._is_saving = False
            if not _has_failed(state):
                self._append(state, self._checkpoint(state))

    def on_train_end(self, state: TrainingState) -> None:
        self.on_step_end(state)

    def _checkpoint(self, state: TrainingState) -> str:
        model, ranks = state.config.model_config, state.config.parallel_config.world_size
        of_sample = state.plan.flops / state.plan.samples
        done = of_sample * (state.consumed_samples - self._first)
        speed = done / (time.time() - self._began) / 1e12 / ranks
        return (
            f"{self._saved}\tIteration: {state.iteration}\tJob throughput: {speed:.4f} TFLOP/s/GPU\t"
            f"Floating-point operations: {of_sample * state.consumed_samples:.2e}\t"
            f"Tokens (in billions): {state.consumed_samples * model.seq_length / 1e9:.4f}"
        )

    def _append(self, state: TrainingState, text: str) -> None:
        ranks, job = state.config.parallel_config.world_size, os.environ.get("SLURM_JOB_ID", "")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\tJob ID: {job}\t# GPUs: {ranks}\t{text}\n")
        except OSError as error:
            warn(f"{self.path}: {error.strerror}; a line is missing in it: {text}")


def _has_failed(state: TrainingState) -> bool:
    """Whether a callback could not save the step's checkpoint."""
    savers = (callback for callback in state.callbacks if isinstance(callback, CheckpointCallback))
    return any(saver.unsaved_iteration == state.iteration for saver in savers)
