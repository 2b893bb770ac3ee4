"""End a run early, in order: the last checkpoint is written."""

import time

import numpy as np
from mindspore import Tensor

from pynative import parallel_state
from pynative.training.callbacks.base import Callback, TrainingState
from pynative.training.log import log


class ExitCallback(Callback):
    """--exit-interval and --exit-duration-in-mins."""

    def __init__(self, interval: int | None, minutes: float | None) -> None:
        self.interval, self.minutes = interval, minutes
        self._started = time.monotonic()

    def on_step_end(self, state: TrainingState) -> None:
        if self.interval and state.iteration % self.interval == 0:
            self._stop(state, f"--exit-interval {self.interval}")
        if self.minutes and self._longest_run() > self.minutes:
            self._stop(state, f"--exit-duration-in-mins {self.minutes}")

    def _longest_run(self) -> float:
        """Minutes since the start, on the rank that started first: ranks must agree on the iteration they end at."""
        own = np.array([(time.monotonic() - self._started) / 60.0], np.float32)
        return float(parallel_state.get_world_group().all_reduce(Tensor(own), op="max").asnumpy()[0])

    @staticmethod
    def _stop(state: TrainingState, reason: str) -> None:
        state.should_stop = True
        log(f"Ending after step {state.iteration}: {reason}")
