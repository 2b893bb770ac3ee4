"""The norm of each parameter's gradient in the log."""

from pynative import parallel_state
from pynative.log import log
from pynative.optimizer.statistics import ModelStatistics
from pynative.training.callbacks.base import Callback, TrainingState


class GradientNormsCallback(Callback):
    """--log-local-norm: a line for each parameter every `interval` iterations, from one rank of each stage."""

    reads_parameters = False

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_train_begin(self, state: TrainingState) -> None:
        self._statistics = ModelStatistics(state.step_cell.buffers)
        coordinates = parallel_state.get_coordinates()
        self._speaks = all(coordinates.get(kind, (0, 1))[0] == 0 for kind in ("tp", "dp-cp"))

    def on_gradients(self, state: TrainingState, gradient_scale: float) -> None:
        if (state.iteration + 1) % self.interval:
            return
        norms = self._statistics.gradient_norms(gradient_scale)
        for name, norm in norms.items() if self._speaks else ():
            log(f"Step: {state.iteration + 1}, Local_norm: {name}: {norm:.6e}")
