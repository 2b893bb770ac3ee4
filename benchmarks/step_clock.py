"""A callback that times steps, and what surrounds them, in one run."""

from collections.abc import Callable

from pynative.collectives import Backend
from pynative.collectives.numbers import sum_over_group
from pynative.training.callbacks import Callback


class StepClock(Callback):
    """Step times and time in collectives after the warm-up; the matrix product's rate before and after.

    Args:
        backend: this rank's connection to the others.
        warm_up: steps that don't count.
        product_rate: measures this rank's matrix product, GFLOP/s; `rates` has the sums over ranks.
    """

    def __init__(self, backend: Backend, warm_up: int, product_rate: Callable[[], float]) -> None:
        self.backend, self.warm_up, self.product_rate = backend, warm_up, product_rate
        self.seconds: list[float] = []
        self.rates: list[float] = []
        self.communication_seconds = 0.0

    def _measure_product(self) -> None:
        self.backend.world.barrier()
        self.rates += sum_over_group([self.product_rate()], self.backend.world)

    def on_train_begin(self, state) -> None:
        self._measure_product()

    def on_step_end(self, state) -> None:
        if state.iteration == self.warm_up:
            self.communication_seconds = self.backend.trace.total().seconds
        if state.iteration > self.warm_up:
            self.seconds.append(state.step_seconds)

    def on_train_end(self, state) -> None:
        self.communication_seconds = self.backend.trace.total().seconds - self.communication_seconds
        self._measure_product()
