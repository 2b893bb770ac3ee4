"""Curves of a run for other programs, TensorBoard, W&B, MLflow, SwanLab: one class for each, in a table by the package
that it needs; each writes in a thread of its own.

Curves that Megatron has, too, have its tags (megatron/training/training.py, `training_log`, of Megatron-LM 0.16.1).
"""

import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from parallel_core.config import AllConfig
from parallel_core.config.log import LogConfig, WriterPlan
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import logged, logged_by_layer
from pynative import parallel_state
from pynative.startup.log import warn
from pynative.training.callbacks.base import Callback, RunCallback, TrainingState
from pynative.training.callbacks.memory import memory_bytes


class Points(NamedTuple):
    """The values of curves after one step, by tag: `by_step` of those drawn over steps alone, `by_both` of those that
    Megatron also draws over the samples consumed."""

    step: int
    samples: int
    """Samples consumed so far."""
    by_both: Mapping[str, float]
    """Values of curves that Megatron also draws over samples."""
    by_step: Mapping[str, float]


class Writer(Protocol):
    """A program that draws curves. Its methods are called in one thread, which no step waits for; an exception ends its
    writing, with a warning."""

    def write(self, points: Points) -> None:
        """Add the values of one step to the curves."""

    def close(self) -> None:
        """Flush everything to its storage, and close."""


class TensorBoardWriter:
    """A writer of TensorBoard's event files in `log_dir`: curves `x` over steps, and of `Points.by_both` also
    `x vs samples` over the samples consumed. run: the run's configuration, which is not written. queue_size: the most
    events that wait to be written."""

    def __init__(self, run: Mapping[str, Any], log_dir: str, queue_size: int) -> None:
        files = import_module("tensorboard.summary.writer.event_file_writer")
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._file = files.EventFileWriter(log_dir, max_queue_size=queue_size)

    def write(self, points: Points) -> None:
        self._add(points.step, {**points.by_both, **points.by_step})
        self._add(points.samples, {f"{tag} vs samples": value for tag, value in points.by_both.items()})

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        if values:
            listed = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            event = self._event(wall_time=time.time(), step=step, summary=self._summary(value=listed))
            self._file.add_event(event)

    def close(self) -> None:
        self._file.close()


class WandbWriter:
    """A writer for Weights & Biases. run: the run's configuration; options: of `wandb.init`."""

    def __init__(self, run: Mapping[str, Any], **options: Any) -> None:
        self._run = import_module("wandb").init(config=dict(run), **options)

    def write(self, points: Points) -> None:
        self._run.log({"samples vs steps": points.samples, **points.by_both, **points.by_step}, step=points.step)

    def close(self) -> None:
        self._run.finish()


class MLflowWriter:
    """A writer for MLflow. run: the run's configuration; experiment: MLflow's name for a group of runs."""

    def __init__(self, run: Mapping[str, Any], experiment: str) -> None:
        self._mlflow = import_module("mlflow")
        self._mlflow.set_experiment(experiment)
        self._mlflow.start_run()
        self._mlflow.log_dict(dict(run), "config.json")

    def write(self, points: Points) -> None:
        values = {"consumed samples": float(points.samples), **points.by_both, **points.by_step}
        self._mlflow.log_metrics(values, step=points.step)

    def close(self) -> None:
        self._mlflow.end_run()


class SwanLabWriter:
    """A writer for SwanLab. run: the run's configuration; options: of `swanlab.init`."""

    def __init__(self, run: Mapping[str, Any], **options: Any) -> None:
        self._swanlab = import_module("swanlab")
        self._swanlab.init(config=dict(run), **options)

    def write(self, points: Points) -> None:
        values = {"consumed samples": points.samples, **points.by_both, **points.by_step}
        self._swanlab.log(values, step=points.step)

    def close(self) -> None:
        self._swanlab.finish()


WRITERS: dict[str, Callable[..., Writer]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
    "mlflow": MLflowWriter,
    "swanlab": SwanLabWriter,
}
"""Name of a package -> the class of the writer that needs it, called with the run's configuration as a dict, and by
name with the `options` of its WriterPlan."""


LOSS = "lm loss"


def points_of_step(state: TrainingState) -> dict[str, float]:
    """Values by tag of the curves over steps and samples. As in Megatron, learning rate and loss scale are those after
    the step; a step that was skipped has no gradient norm and no number of zeros. Number of ranks, number of zeros and
    norm of the weights are there only if flags ask for them, the loss scale unless a flag leaves it out."""
    config, result, metrics = state.config, state.result, state.metrics
    scaler = state.step_cell.loss_scaler
    points = {
        "learning-rate": state.step_cell.scheduler.rates().learning_rate,
        "batch-size": float(result.samples),
        LOSS: result.loss,
    }
    if config.training_config.log.log_loss_scale_to_tensorboard:
        points["loss-scale"] = 1.0 if scaler is None else scaler.scale
    if config.training_config.log.log_world_size_to_tensorboard:
        points["world-size"] = float(config.parallel_config.world_size)
    if not result.skipped:
        points["grad-norm"] = result.gradient_norm
        points |= {"num-zeros": metrics["num_zeros"]} if "num_zeros" in metrics else {}
    return points | ({"params-norm": metrics["params_norm"]} if "params_norm" in metrics else {})


def points_of_layers(config: AllConfig, figures: Mapping[str, Array]) -> dict[str, float]:
    """Values by tag of the curves over steps alone, of what layers report: losses summed over layers and divided by
    `Figure.layers` (where that is not 0), largest scores as the largest of all, and with --moe-per-layer-logging
    routers' losses by layer. figures: name -> what all cells reported in a step; empty: there are no values."""
    model = config.model_config
    points = {_megatrons(name): value for name, value in logged(model, figures).items()}
    return points | (logged_by_layer(model, figures) if model.moe_config.monitors.moe_per_layer_logging else {})


def _megatrons(name: str) -> str:
    """Megatron's tag of a figure: "mtp_1 loss" for "mtp_1_loss", else the name itself."""
    return re.sub(r"^(mtp_\d+)_loss$", r"\1 loss", name)


def points_of_evaluation(loss: float, perplexity: float | None) -> dict[str, float]:
    """Values by tag of an evaluation's curves, over steps and samples; perplexity None: it is left out."""
    points = {f"{LOSS} validation": loss}
    return points | ({} if perplexity is None else {f"{LOSS} validation ppl": perplexity})


MOST_WAITING = 10_000
"""The largest number of steps whose points wait to be written; further ones are dropped and counted."""
CLOSING_SECONDS = 60.0
"""Seconds for which a run waits at its end for a writer to finish."""


class Background:
    """A writer and the thread in which it is opened and called.

    Args:
        name: of the writer in messages: the flag that asks for it.
        make: opens the writer, in the thread.
    """

    def __init__(self, name: str, make: Callable[[], Writer]) -> None:
        self._name, self._make = name, make
        self._points: queue.Queue[Points | None] = queue.Queue(MOST_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=f"writes {name}", daemon=True)
        self._thread.start()

    def write(self, points: Points) -> None:
        """Queue the points for the thread, without waiting; they are dropped, and counted, if MOST_WAITING wait
        already."""
        try:
            self._points.put_nowait(points)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Wait until everything is written, at most CLOSING_SECONDS."""
        end = time.monotonic() + CLOSING_SECONDS
        if self._thread.is_alive():
            with suppress(queue.Full):  # a service that does not answer must not end the run
                self._points.put(None, timeout=CLOSING_SECONDS)
            self._thread.join(max(0.0, end - time.monotonic()))
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
        except Exception as error:  # training goes on without a back end that fails, whatever it raises
            warn(f"{self._name}: {type(error).__name__}: {error}; nothing more is written there")
            while self._points.get() is not None:
                pass


class WritersCallback(RunCallback):
    """--tensorboard-dir, --wandb-project, --mlflow-experiment, --swanlab-project: hands curves to their writers after
    each step; those of `points_of_step` and, if asked for, of memory only at multiples of
    --tensorboard-log-interval."""

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
    """The callback of the writers that flags ask for and whose packages are installed, in a list, on the last rank;
    empty on others, or without such writers. A package that is missing is warned of. output: the folder of the run's
    files."""
    if parallel_state.get_global_rank() < parallel_state.get_world_group().size - 1:
        return []
    found = []
    for plan in config.writers(str(output)):
        if find_spec(plan.package) is None:
            warn(f"{plan.flag}: nothing is written: {plan.package} is not installed; pip install {plan.package}")
        else:
            found.append(plan)
    return [WritersCallback(found)] if found else []
