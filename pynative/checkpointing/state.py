"""The state of a run that a checkpoint holds, as an interface for any loop; `TrainingState` implements it."""

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
    """A new random id of a run."""
    return uuid4().hex


class Updates(Protocol):
    """The holder of a run's optimizer and learning-rate schedule; either is None if the run has none."""

    @property
    def optimizer(self) -> FlatOptimizer | None: ...
    @property
    def scheduler(self) -> OptimizerParamScheduler | None: ...


class Remembers(Protocol):
    """A callback whose state, of plain values, a checkpoint keeps."""

    def before_save(self, state: Any) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...


class RunState(Protocol):
    """A run between two steps, as it is saved and loaded. `callback_states`: the states of callbacks in the checkpoint
    that was loaded, by the callback's name (`named`); `run_id`: the run's id, which it keeps when it goes on from a
    checkpoint; `resumed_from`: that checkpoint, None: the run began anew."""

    config: AllConfig
    model: nn.CellList
    iteration: int
    consumed_samples: int
    callback_states: dict[str, dict[str, Any]]
    """The states of callbacks in the checkpoint that was loaded, by the callback's name (`named`)."""
    run_id: str
    """The run's id, which it keeps when it goes on from a checkpoint; rank 0's is written. Only checkpoints with this
    id are deleted as surplus."""
    resumed_from: Path | None
    """The checkpoint from which the run goes on; None: it began anew."""

    @property
    def callbacks(self) -> Sequence[Remembers]:
        """The callbacks of the run."""

    @property
    def step_cell(self) -> Updates:
        """The holder of the run's optimizer and schedule."""


def named(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Callbacks by the names under which a checkpoint keeps their states: the class's name, numbered from the second of
    one name on ("Name/2")."""
    found: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        same = sum(name.partition("/")[0] == kind for name in found)
        found[f"{kind}/{same + 1}" if same else kind] = callback
    return found


def get_checkpoint_name(ckpt_path: str | Path, iteration: int) -> Path:
    """The directory of the checkpoint of an iteration in the directory `ckpt_path`; it need not exist."""
    return Path(ckpt_path) / commit.checkpoint_name(iteration)


def get_last_checkpoint(ckpt_path: str | Path) -> Path:
    """The directory of the latest checkpoint in `ckpt_path`, the one that its tracker file names (without that file the
    newest whole one), or `ckpt_path` itself if it is one of ours. Raises ValueError if there is none, or if the tracker
    file is damaged or names one that is not there."""
    return commit.find(Path(ckpt_path))
