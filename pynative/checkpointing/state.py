"""What a checkpoint holds of a run, whichever loop runs it: `TrainingState` is one."""

from typing import Protocol

from mindspore import nn

from parallel_core.config import AllConfig
from parallel_core.lr_schedule import OptimizerParamScheduler
from pynative.optimizer.flat_optimizer import FlatOptimizer


class Updates(Protocol):
    """What updates the weights, and how fast; neither where weights alone are saved or loaded."""

    @property
    def optimizer(self) -> FlatOptimizer | None: ...
    @property
    def scheduler(self) -> OptimizerParamScheduler | None: ...


class RunState(Protocol):
    """A run between two steps."""

    config: AllConfig
    model: nn.CellList
    iteration: int
    consumed_samples: int

    @property
    def step_cell(self) -> Updates:
        """Its optimizer and schedule."""
