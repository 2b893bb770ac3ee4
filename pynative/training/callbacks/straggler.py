"""--log-straggler: reports which rank is slow, and in which part of a step."""

from collections import defaultdict

import numpy as np
from mindspore import Tensor

from parallel_core.faults import stragglers
from parallel_core.numerics.dtypes import Array
from pynative import parallel_state
from pynative.pipeline_parallel.runner import COMPUTE
from pynative.startup.log import log, warn
from pynative.training.callbacks.base import Callback, TrainingState

PARTS = (
    "batch-generator",
    *COMPUTE.values(),
    "all-grads-sync",
    "optimizer-clip-main-grad",
    "before-update",
    "optimizer",
)
"""Names of the timers that are compared; in each the time that a rank waits for others is left out."""


class StragglerCallback(Callback):
    """Compares, every `interval` iterations, how long the ranks spent on average in a step's parts (the timers in
    PARTS), waiting for others left out; rank 0 logs the fastest and slowest `count` ranks by the sum over the parts,
    and warns of stragglers (`faults.stragglers`). All ranks have this callback."""

    reads_parameters = False

    def __init__(self, interval: int, count: int) -> None:
        self.interval, self.count = interval, count
        self._seconds: list[float] = []

    def on_train_begin(self, state: TrainingState) -> None:
        state.step_cell.timers.take_busy()

    def on_step_end(self, state: TrainingState) -> None:
        self._seconds.append(state.step_seconds)
        if state.iteration % self.interval:
            return
        busy, steps, self._seconds = state.step_cell.timers.take_busy(), self._seconds, []
        stage = parallel_state.get_pipeline_model_parallel_rank()
        own = [float(stage), *(busy.get(name, 0.0) / len(steps) for name in PARTS)]
        rows = parallel_state.get_world_group().all_gather(Tensor(np.array([own], np.float32))).asnumpy()
        if parallel_state.get_global_rank() == 0:
            self._say(np.asarray(rows, np.float64), sum(steps) / len(steps), state.iteration)

    def _say(self, rows: Array, step: float, iteration: int) -> None:
        alike: defaultdict[float, list[int]] = defaultdict(list)
        for rank, stage in enumerate(rows[:, 0]):
            alike[float(stage)].append(rank)
        seconds = rows[:, 1:]
        totals = seconds.sum(axis=1) * 1e3
        order = np.argsort(totals, kind="stable")
        fastest, slowest = (
            ", ".join(f"{totals[rank]:.1f} (rank {rank})" for rank in ranks)
            for ranks in (order[: self.count], order[::-1][: self.count])
        )
        log(f"Straggler report, iteration {iteration}: ms a step without waiting: fastest {fastest}; slowest {slowest}")
        for line in stragglers(PARTS, seconds, list(alike.values()), step):
            warn(f"iteration {iteration}: {line}")
