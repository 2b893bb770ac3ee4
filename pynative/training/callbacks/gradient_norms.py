"""The callback that logs the norm of each parameter's gradient."""

from parallel_core.sharding import MODEL_KINDS, Coordinates, ShardSpec
from pynative import parallel_state
from pynative.optimizer.statistics import ModelStatistics
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState


class GradientNormsCallback(RunCallback):
    """--log-local-norm: the L2 norm of each trained parameter's whole gradient, before clipping, as a line every
    `interval` iterations. In each stage that has the parameter one rank logs it: the stage's first or, for an expert's
    parameter, one of those that hold that expert."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_train_begin(self, state: TrainingState) -> None:
        self._statistics = ModelStatistics(state.step_cell.buffers)
        coordinates = parallel_state.get_coordinates()
        specs = [entry.spec for entry, _ in state.step_cell.buffers.entries]
        self._logged = {spec.name for spec in specs if _is_first(spec, coordinates)}

    def on_gradients(self, state: TrainingState, gradient_scale: float) -> None:
        if (state.iteration + 1) % self.interval:
            return
        norms = self._statistics.gradient_norms(gradient_scale)
        for name, norm in norms.items():
            if name in self._logged:
                log(f"Step: {state.iteration + 1}, Local_norm: {name}: {norm:.6e}")


def _is_first(spec: ShardSpec, coordinates: Coordinates) -> bool:
    """Whether this rank is the first of its stage that holds the parameter, or a part of it."""
    kinds = {spec.replicas, *MODEL_KINDS[spec.replicas]} - {*spec.distinct_over}
    return all(coordinates.get(kind, (0, 1))[0] == 0 for kind in kinds)
