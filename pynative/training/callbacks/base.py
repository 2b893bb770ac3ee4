"""The events of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallel_core.planner import Plan
from pynative.checkpointing.state import new_run_id
from pynative.training.callbacks.recorder import Recorder

if TYPE_CHECKING:
    from mindspore import nn

    from parallel_core.config import AllConfig
    from parallel_core.planner.beside import Comparison
    from pynative.training.train_step import StepResult, TrainOneStepCell


@dataclass
class TrainingState:
    """The state of a run that callbacks see; `iteration` counts finished steps, from a checkpoint's on."""

    config: AllConfig
    model: nn.CellList
    """This stage's chunks: one, or as many as there are virtual stages."""
    step_cell: TrainOneStepCell
    result: StepResult = field(init=False)
    """The result of the last step; there is none before the first."""
    iteration: int = 0
    consumed_samples: int = 0
    samples_per_epoch: int | None = None
    step_seconds: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    """The step's figures by the names of the log line."""
    timings: dict[str, float] = field(default_factory=dict)
    """Mean seconds of an iteration and of its timers, by the names of curves; empty but where they are logged."""
    should_stop: bool = False
    callbacks: Sequence[Callback] = ()
    """All of the run's."""
    callback_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    """States in the checkpoint that was loaded: name of a callback -> the result of its `state_dict`."""
    run_id: str = field(default_factory=new_run_id)
    """The same after every resumption; rank 0's is written into checkpoints."""
    resumed_from: Path | None = None
    """The checkpoint with which the run goes on; none: it begins."""
    comparison: Comparison | None = None
    """The comparison of the last step with its plan; there is one after the second step."""

    @cached_property
    def recorder(self) -> Recorder:
        """The recorder of this rank's steps."""
        return Recorder(self.step_cell.timers)

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run: everything that is predicted."""
        return Plan.of_run(self.config)


class Callback:
    """Override what you need; methods run in the order in which callbacks were given, on every rank."""

    reads_parameters = True
    """Whether `on_step_end` may look at the model's parameters, which so have to be whole; where no callback does,
    --overlap-param-gather lets them arrive during the next forward. With --zero-stage 3 a parameter's values are not
    there between steps: every element is -1024; `pynative.parameter.whole_parameters` brings them, one after the
    other."""

    def on_train_begin(self, state: TrainingState) -> None:
        """Act before the first step."""

    def before_change(self, state: TrainingState) -> None:
        """Weights are about to change: by the update after `on_gradients`, or what callbacks do in it and in
        `on_train_end`. All are told before any of them does."""

    def on_gradients(self, state: TrainingState, gradient_scale: float) -> None:
        """Gradients are reduced and lie, unscaled, in `main_grad`; the update follows."""

    def on_step_end(self, state: TrainingState) -> None:
        """Act after a step; `state.result` is its outcome."""

    def before_save(self, state: TrainingState) -> None:
        """A checkpoint is about to be written: whoever holds trained values elsewhere puts them into the model."""

    def state_dict(self) -> dict[str, Any]:
        """The state of this callback that a resumed run needs, as plain values (JSON's); rank 0's is kept in
        checkpoints."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave, before `on_train_begin`, on every rank."""

    def on_train_end(self, state: TrainingState) -> None:
        """Act after the last step of a run that succeeded."""

    def close(self) -> None:
        """Give back what is held: the run is over, or has failed. No collectives."""


class RunCallback(Callback):
    """One of the run's own, which leave parameters alone unless they ask for them."""

    reads_parameters = False
