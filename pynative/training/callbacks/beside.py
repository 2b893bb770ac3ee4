"""The comparison of a step, the second after training begins or goes on, with the run's plan."""

import tracemalloc

import mindspore as ms
import numpy as np

from parallel_core.planner.beside import ACTIVATIONS, compare, comparison_lines
from pynative import parallel_state
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState
from pynative.training.callbacks.memory import is_on_cpu
from pynative.training.planned import is_planned


class BesideCallback(RunCallback):
    """Logs time and memory of this rank beside the plan, by part, and stores them in `state.comparison`, once: a second
    step that a rollback repeats is not compared again.

    The time is that of the second step after training begins or goes on, since the first one warms up. Memory is what
    is allocated for weights, gradients and optimizer states, and the peak of everything else: on a CPU of numpy's
    arrays made before the first step's update (not measured without `counts_arrays`, or where memory is traced
    already), elsewhere as the device
    counts. Nothing is compared for a model with other parameters than the plan's, in a run whose batch size changes, or
    without a second step.
    """

    counts_arrays = True
    """Whether arrays are counted on a CPU, which makes the first step half as long again."""

    def __init__(self) -> None:
        self._is_tracing = False
        self._most: float | None = None

    def on_train_begin(self, state: TrainingState) -> None:
        self._second = state.iteration + 2
        has_second = self._second <= state.config.training_config.training_iters
        is_even = has_second and not state.config.batch_sizes.changes
        self._has_plan = is_even and is_planned(state.plan, state.model)
        if self._has_plan and self.counts_arrays and is_on_cpu() and not tracemalloc.is_tracing():
            self._is_tracing = True
            tracemalloc.start()

    def before_change(self, state: TrainingState) -> None:
        """Stop counting arrays, if they are counted: the first step's forwards, backwards and sums are over."""
        self._stop_tracing()

    def on_step_end(self, state: TrainingState) -> None:
        if not self._has_plan or state.iteration > self._second:
            return
        if state.iteration < self._second:
            state.recorder.begin()
            return
        stage, spans = parallel_state.get_pipeline_model_parallel_rank(), state.recorder.spans_of(state.result)
        state.recorder.end()
        self._has_plan = False
        state.comparison = compare(state.plan, state.iteration, stage, spans, self._held(state))
        log("\n".join(comparison_lines(state.comparison)))

    def _held(self, state: TrainingState) -> dict[str, float | None]:
        frozen = sum(p.nbytes for p in state.model.get_parameters() if not p.requires_grad)
        allocated = [buffer.bytes for buffer in state.step_cell.buffers]
        held = {
            "weights": float(frozen + sum(of_parameters for of_parameters, _ in allocated)),
            "gradients": float(sum(of_gradients for _, of_gradients in allocated)),
            "optimizer": float(state.step_cell.optimizer.bytes),
        }
        if not is_on_cpu():
            self._most = float(ms.runtime.max_memory_allocated()) - sum(held.values())
        return {**held, ACTIVATIONS: self._most}

    def _stop_tracing(self) -> None:
        if self._is_tracing:
            self._is_tracing, self._most = False, float(tracemalloc.get_traced_memory()[1] - _bytes_of_objects())
            tracemalloc.stop()

    def close(self) -> None:
        self._stop_tracing()


def _bytes_of_objects() -> int:
    """Bytes of Python's objects, without numpy's arrays, made since tracing began: primitives and such, which a first
    step makes and keeps."""
    others = [tracemalloc.DomainFilter(False, np.lib.tracemalloc_domain)]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(others).traces)
