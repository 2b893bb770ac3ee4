"""Callbacks that end a run early, but as at its regular end: with --save the last checkpoint is written."""

import signal
import time
from typing import Any

from pynative import parallel_state
from pynative.collectives.numbers import over_group
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class ExitCallback(RunCallback):
    """--exit-interval and --exit-duration-in-mins: ends the run after a step whose number is a multiple of `interval`,
    or after the first step that ends more than `minutes` after this callback was made, on any rank. None, 0: never."""

    def __init__(self, interval: int | None, minutes: float | None) -> None:
        self.interval, self.minutes = interval, minutes
        self._started = time.monotonic()

    def on_step_end(self, state: TrainingState) -> None:
        if self.interval and state.iteration % self.interval == 0:
            _stop(state, f"--exit-interval {self.interval}")
        if self.minutes and _highest((time.monotonic() - self._started) / 60.0) > self.minutes:
            _stop(state, f"--exit-duration-in-mins {self.minutes}")


class SignalCallback(RunCallback):
    """--exit-signal-handler: SIGTERM or SIGUSR1 to any rank, once training has begun, ends the run when a step is
    over."""

    def __init__(self) -> None:
        self._received = False

    def on_train_begin(self, state: TrainingState) -> None:
        self._earlier = {number: signal.signal(number, self._remember) for number in SIGNALS}

    def _remember(self, number: int, frame: Any) -> None:
        self._received = True

    def on_step_end(self, state: TrainingState) -> None:
        if _highest(float(self._received)):
            _stop(state, "--exit-signal-handler, a process was told to end")

    def on_train_end(self, state: TrainingState) -> None:
        for number, handler in self._earlier.items():
            # None: Python did not install the earlier handler
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _highest(own: float) -> float:
    """The largest value of any rank, because ranks must agree on the iteration they end at."""
    return over_group(own, parallel_state.get_world_group(), "max")


def _stop(state: TrainingState, reason: str) -> None:
    state.should_stop = True
    log(f"Ending after step {state.iteration}: {reason}")
