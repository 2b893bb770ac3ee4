"""A callback that times steps, and what surrounds them, in one run."""

from collections.abc import Callable

from pynative.collectives import Backend
from pynative.collectives.numbers import sum_over_group
from pynative.training.callbacks import Callback


class StepClock(Callback):
    """The times of steps and of collectives after the warm-up, and then the rate of the matrix product.

    The rate is measured last: memory that a library of products keeps for itself is not memory of the training.

    Args:
        backend: this rank's connection to the others.
        warm_up: steps that don't count.
        product_rate: measures this rank's matrix product, GFLOP/s; `rate` is the sum over ranks.
    """

    def __init__(self, backend: Backend, warm_up: int, product_rate: Callable[[], float]) -> None:
        self.backend, self.warm_up, self.product_rate = backend, warm_up, product_rate
        self.seconds: list[float] = []
        self.rate = 0.0
        self.communication_seconds = 0.0

    def on_step_end(self, state) -> None:
        if state.iteration == self.warm_up:
            self.communication_seconds = self.backend.trace.total().seconds
        if state.iteration > self.warm_up:
            self.seconds.append(state.step_seconds)

    def on_train_end(self, state) -> None:
        self.communication_seconds = self.backend.trace.total().seconds - self.communication_seconds
        self.backend.world.barrier()
        (self.rate,) = sum_over_group([self.product_rate()], self.backend.world)
