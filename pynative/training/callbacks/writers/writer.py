"""What a writer is: one class for each back end, registered by the package that it needs."""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol


class Points(NamedTuple):
    """Values of curves after one step."""

    step: int
    samples: int
    """Consumed so far."""
    by_both: Mapping[str, float]
    """Curves that Megatron also draws over samples."""
    by_step: Mapping[str, float]


class Writer(Protocol):
    """A back end. Methods run in one thread, which no step waits for; what they raise is said once."""

    def write(self, points: Points) -> None:
        """Add one value to each of the curves."""

    def close(self) -> None:
        """Bring everything to where it is kept."""


class TensorBoardWriter:
    """Event files, with Megatron's tags: `x`, and `x vs samples` over the samples consumed."""

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
    """Weights & Biases, with Megatron's names."""

    def __init__(self, run: Mapping[str, Any], **options: Any) -> None:
        self._run = import_module("wandb").init(config=dict(run), **options)

    def write(self, points: Points) -> None:
        self._run.log({"samples vs steps": points.samples, **points.by_both, **points.by_step}, step=points.step)

    def close(self) -> None:
        self._run.finish()


class MLflowWriter:
    """MLflow, whose names have no spaces at their ends and no brackets; ours have neither."""

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
    """SwanLab."""

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
"""Package -> the writer that needs it, made of the run's configuration and its plan's options."""
