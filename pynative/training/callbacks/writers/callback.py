"""Hand the curves of a run to the writers that are asked for, which write in a thread of their own."""

import math
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from parallel_core.config.log import LogConfig, WriterPlan
from pynative import parallel_state
from pynative.startup.log import warn
from pynative.training.callbacks.base import Callback, TrainingState
from pynative.training.callbacks.memory import memory_bytes
from pynative.training.callbacks.writers.tags import points_of_evaluation, points_of_layers, points_of_step
from pynative.training.callbacks.writers.writer import WRITERS, Points, Writer

MOST_WAITING = 10_000
"""Steps whose points may wait; further ones are left out, and counted."""
CLOSING_SECONDS = 60.0
"""How long a run waits at its end for what is still to be written."""


class Background:
    """One writer and its thread.

    Args:
        name: of the writer in messages: the flag that asks for it.
        make: opens it, in the thread.
    """

    def __init__(self, name: str, make: Callable[[], Writer]) -> None:
        self._name, self._make = name, make
        self._points: queue.Queue[Points | None] = queue.Queue(MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=f"writes {name}", daemon=True)
        self._thread.start()

    def write(self, points: Points) -> None:
        """Hand them over, at once."""
        try:
            self._points.put_nowait(points)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Wait until everything is written, for a minute at most."""
        if self._thread.is_alive():
            self._points.put(None, timeout=CLOSING_SECONDS)
            self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            warn(f"{self._name}: has not written everything {CLOSING_SECONDS:.0f} s after the last step; it is left")
        if self._lost:
            warn(f"{self._name}: was too slow; the points of {self._lost} steps are not in it")

    def _run(self) -> None:
        try:
            writer = self._make()
            while (points := self._points.get()) is not None:
                writer.write(points)
            writer.close()
        except Exception as error:  # whatever a back end raises, training goes on without it
            warn(f"{self._name}: {type(error).__name__}: {error}; nothing more is written there")
            while self._points.get() is not None:
                pass


class WritersCallback(Callback):
    """--tensorboard-dir, --wandb-project, --mlflow-experiment, --swanlab-project; give it to the last rank only, whose
    curves Megatron writes, too."""

    reads_parameters = False

    def __init__(self, plans: Sequence[WriterPlan]) -> None:
        self.plans = plans
        self._writers: list[Background] = []

    def on_train_begin(self, state: TrainingState) -> None:
        run = state.config.to_dict()
        self._writers = [
            Background(plan.flag, partial(WRITERS[plan.package], run, **plan.options)) for plan in self.plans
        ]

    def on_step_end(self, state: TrainingState) -> None:
        log = state.config.training_config.log
        by_both: dict[str, float] = {}
        by_step = points_of_layers(state.config, state.result.figures)
        if state.iteration % log.tensorboard_log_interval == 0:
            by_both = points_of_step(state)
            by_step |= memory_bytes() if log.log_memory_to_tensorboard else {}
        if "validation_loss" in state.metrics:
            loss = state.metrics["validation_loss"]
            perplexity = math.exp(min(20.0, loss)) if log.log_validation_ppl_to_tensorboard else None
            by_both |= points_of_evaluation(loss, perplexity)
        if log.log_timers_to_tensorboard:
            by_step |= state.timings
        for writer in self._writers:
            writer.write(Points(state.iteration, state.consumed_samples, by_both, by_step))

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def writers_callbacks(config: LogConfig, output: Path) -> list[Callback]:
    """What the flags ask of this rank. A package that is missing is said, and training goes on without it, as in
    Megatron. output: the folder of the run's files."""
    if parallel_state.get_global_rank() < parallel_state.get_world_group().size - 1:
        return []
    found = []
    for plan in config.writers(str(output)):
        if find_spec(plan.package) is None:
            warn(f"{plan.flag}: nothing is written: {plan.package} is not installed; pip install {plan.package}")
        else:
            found.append(plan)
    return [WritersCallback(found)] if found else []
