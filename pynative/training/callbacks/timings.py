"""The callback that logs timers, and hands their times to writers of curves."""

from collections.abc import Iterator, Sequence

import numpy as np
from mindspore import Tensor

from parallel_core.config.log import LogConfig
from parallel_core.numerics.dtypes import Array
from pynative import parallel_state
from pynative.pipeline_parallel.runner import COMPUTE, RECEIVE
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState

NAMES = (
    "forward-backward",
    "all-grads-sync",
    "optimizer-clip-main-grad",
    "optimizer",
    "batch-generator",
    *COMPUTE.values(),
    *RECEIVE.values(),
)
"""Names of the timers, Megatron's where it has one, in the order in which they are printed."""


class TimingsCallback(RunCallback):
    """Stores in `state.timings`, every `interval` iterations, the mean seconds of an iteration, with --log-throughput
    the TFLOP/s of a device, and with --timing-log-level above 0 the mean seconds of each timer in NAMES that any rank
    has (the largest of any rank); these the last rank logs in milliseconds, too, as --timing-log-option says. After
    other iterations `state.timings` is empty. All ranks have this callback."""

    def __init__(self, config: LogConfig, interval: int) -> None:
        self.config, self.interval = config, interval
        self._seconds: list[float] = []

    def on_train_begin(self, state: TrainingState) -> None:
        state.step_cell.timers.take()

    def on_step_end(self, state: TrainingState) -> None:
        self._seconds.append(state.step_seconds)
        state.timings = {}
        if state.iteration % self.interval:
            return
        steps, self._seconds = self._seconds, []
        state.timings = {"iteration-time": sum(steps) / len(steps)}
        if self.config.log_throughput:
            state.timings["throughput"] = state.metrics["tflops"] * state.step_seconds / state.timings["iteration-time"]
        if self.config.timing_log_level:
            taken = state.step_cell.timers.take()
            seconds = _of_all_ranks([taken.get(name, 0.0) / len(steps) for name in NAMES])
            state.timings |= {
                f"{name}-time": times.max() for name, times in zip(NAMES, seconds, strict=True) if times.any()
            }
            if parallel_state.get_global_rank() == len(seconds[0]) - 1 and seconds.any():
                log("\n".join(_lines(seconds * 1e3, self.config.timing_log_option)))


def _of_all_ranks(seconds: Sequence[float]) -> Array:
    """The seconds of every rank, [names, ranks], from this rank's."""
    world = parallel_state.get_world_group()
    own = Tensor(np.array([seconds], np.float32))
    return np.asarray(world.all_gather(own).asnumpy().T, np.float64)


def _lines(milliseconds: Array, option: str) -> Iterator[str]:
    """The log's lines for times [names, ranks] by --timing-log-option. Timers that no rank has are left out, and with
    "all" ranks that do not have one."""
    titles = {"max": "max time", "minmax": "(min, max) time", "all": "times"}
    yield f"{titles[option]} across ranks (ms):"
    for name, times in zip(NAMES, milliseconds, strict=True):
        own = times[times > 0]
        if not own.size:
            continue
        dots = f"    {name} ".ljust(52, ".")
        if option == "all":
            yield f"  {name}:"
            yield from (f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(times) if time > 0)
        else:
            yield f"{dots}: {own.max():.2f}" if option == "max" else f"{dots}: ({own.min():.2f}, {own.max():.2f})"
