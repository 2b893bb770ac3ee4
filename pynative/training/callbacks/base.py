"""The events of a run: the base class of callbacks, and the state that they see."""

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
    """The state of a run that callbacks see. `iteration` counts finished steps, those before a resumption included,
    those that a rollback took back excluded; `consumed_samples` counts the samples of these steps and of those that a
    rollback took back. Of the last step are `result`, `step_seconds` and `metrics` (figures for the log). `timings`:
    after a step that is a multiple of --log-interval means over the latest steps, by the names of curves; else empty. A
    callback that sets `should_stop`, on all ranks, ends the run before its next step. `callback_states`: the callbacks'
    states in the checkpoint from which the run goes on, by the callbacks' names."""

    config: AllConfig
    model: nn.CellList
    """This stage's chunks: one, or one for each virtual stage."""
    step_cell: TrainOneStepCell
    result: StepResult = field(init=False)
    """The result of the last step; unset before the first."""
    iteration: int = 0
    consumed_samples: int = 0
    samples_per_epoch: int | None = None
    step_seconds: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    """The last step's figures, by the keys of `metrics.jsonl`."""
    timings: dict[str, float] = field(default_factory=dict)
    """Mean seconds of an iteration and of its timers (of these the largest of any rank), with --log-throughput also
    TFLOP/s of a rank, by the names of curves; empty in steps where they are not logged."""
    should_stop: bool = False
    callbacks: Sequence[Callback] = ()
    """All callbacks of the run, in their order."""
    callback_states: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The results of callbacks' `state_dict` in the checkpoint from which the run goes on, by the callback's name."""
    run_id: str = field(default_factory=new_run_id)
    """The run's id, the same after every resumption; rank 0's is written into checkpoints."""
    resumed_from: Path | None = None
    """The checkpoint from which the run goes on; None: it began anew."""
    comparison: Comparison | None = None
    """The comparison of a step with the run's plan, by `BesideCallback`; None before it, or where nothing is
    compared."""

    @cached_property
    def recorder(self) -> Recorder:
        """The recorder of this rank's spans of time, which the run's callbacks share."""
        return Recorder(self.step_cell.timers)

    @cached_property
    def plan(self) -> Plan:
        """The plan for the run's configuration: predicted parameters, time and memory."""
        return Plan.of_run(self.config)


class Callback:
    """The base of callbacks: override the methods of the events that you need. An event calls the callbacks in their
    order in the run, `close` in the reverse order, `load_state_dict` in the order of the checkpoint's states."""

    reads_parameters = True
    """Whether `on_step_end` may read the model's parameters, which then must be whole; where no callback does,
    --overlap-param-gather lets them arrive during the next forward. With --zero-stage 3 a parameter's values are not
    there between steps: every element is -1024; `pynative.parameter.whole_parameters` brings them, one after the other.
    """

    def on_train_begin(self, state: TrainingState) -> None:
        """Act when training begins or goes on, before the first step."""

    def before_change(self, state: TrainingState) -> None:
        """Act before weights may change: before each `on_gradients` (callbacks may change weights there, and the update
        follows), after a spike before a rollback, and before `on_train_end`. All callbacks get this call before the
        first of them gets the event. It does not announce changes that a callback makes in other events."""

    def on_gradients(self, state: TrainingState, gradient_scale: float) -> None:
        """Act between a step's backwards and its update, also if the update is then skipped. The reduced gradients lie
        in `state.step_cell.buffers`, still to be multiplied by `gradient_scale`; with a distributed optimizer only the
        part that this rank owns is reduced. `state.iteration` does not count this step yet."""

    def on_step_end(self, state: TrainingState) -> None:
        """Act after a step; `state.result` is its outcome."""

    def before_save(self, state: TrainingState) -> None:
        """Act before a checkpoint is written: a callback that holds trained values elsewhere writes them into the
        model."""

    def state_dict(self) -> dict[str, Any]:
        """The state of this callback that a resumed run needs, as plain values (JSON's); rank 0's is written into
        checkpoints unless it is empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state that a checkpoint has of this callback, on every rank: before `on_train_begin` of a resumed
        run, and at a rollback. It is rank 0's `state_dict` as JSON gives it back: keys are strings, tuples lists."""

    def on_train_end(self, state: TrainingState) -> None:
        """Act at the end of training that did not fail, after the last step."""

    def close(self) -> None:
        """Release what is held, when the run is over or has failed. No collectives."""


class RunCallback(Callback):
    """The base of callbacks for which parameters need not be whole in `on_step_end`: `reads_parameters` is False."""

    reads_parameters = False
