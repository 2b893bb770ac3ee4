"""The state of a run that a checkpoint holds, whichever loop runs it: `TrainingState` is one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from mindspore import nn

from parallel_core.checkpoint import commit
from parallel_core.config import AllConfig
from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from pynative.optimizer.flat_optimizer import FlatOptimizer


def new_run_id() -> str:
    """A name for a run that begins."""
    return uuid4().hex


class Updates(Protocol):
    """The optimizer and its schedules; neither where weights alone are saved or loaded."""

    @property
    def optimizer(self) -> FlatOptimizer | None: ...
    @property
    def scheduler(self) -> OptimizerParamScheduler | None: ...


class Remembers(Protocol):
    """A callback with a state of plain values that a checkpoint keeps."""

    def before_save(self, state: Any) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...


class RunState(Protocol):
    """A run between two steps."""

    config: AllConfig
    model: nn.CellList
    iteration: int
    consumed_samples: int
    callback_states: dict[str, dict[str, Any]]
    """States in the checkpoint that was loaded: name of a callback -> its state."""
    run_id: str
    """A run that goes on keeps it; rank 0's is written. Only a run's own checkpoints are deleted for it."""
    resumed_from: Path | None
    """The checkpoint with which the run goes on; none: it begins."""

    @property
    def callbacks(self) -> Sequence[Remembers]:
        """The callbacks of the run."""

    @property
    def step_cell(self) -> Updates:
        """Its optimizer and schedule."""


def named(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Callbacks by the names under which a checkpoint keeps their states: their classes', a second one's numbered."""
    found: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        same = sum(name.partition("/")[0] == kind for name in found)
        found[f"{kind}/{same + 1}" if same else kind] = callback
    return found


def get_checkpoint_name(ckpt_path: str | Path, iteration: int) -> Path:
    """The directory of an iteration's checkpoint."""
    return Path(ckpt_path) / commit.checkpoint_name(iteration)


def get_last_checkpoint(ckpt_path: str | Path) -> Path:
    """The latest checkpoint's directory; ValueError if there is none."""
    return commit.find(Path(ckpt_path))
