"""The memory of a process: its figures, and the callback that logs them."""

import resource

import mindspore as ms
import psutil

from pynative import parallel_state
from pynative.startup.log import log
from pynative.training.callbacks.base import RunCallback, TrainingState


def is_on_cpu() -> bool:
    """Whether MindSpore's device is the CPU, so that tensors lie in main memory."""
    return bool(ms.get_context("device_target") == "CPU")


def peak_memory_mb(on_cpu: bool | None = None) -> float:
    """The most memory that this process has held so far, in MiB: allocated on the device, or on a CPU resident in main
    memory. on_cpu: the result of `is_on_cpu`, where it is known; None: it is asked for."""
    if is_on_cpu() if on_cpu is None else on_cpu:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return float(ms.runtime.max_memory_allocated()) / 2.0**20


def memory_bytes() -> dict[str, float]:
    """Bytes of this process by Megatron's tags: reserved now, allocated now, and the most that was allocated; on a CPU
    the first two are both the resident memory, and the third is its peak."""
    if is_on_cpu():
        held, peak = float(psutil.Process().memory_info().rss), peak_memory_mb() * 2**20
        return {"mem-reserved-bytes": held, "mem-allocated-bytes": held, "mem-max-allocated-bytes": peak}
    runtime = ms.runtime
    return {
        "mem-reserved-bytes": float(runtime.memory_reserved()),
        "mem-allocated-bytes": float(runtime.memory_allocated()),
        "mem-max-allocated-bytes": float(runtime.max_memory_allocated()),
    }


class MemoryCallback(RunCallback):
    """--log-memory-interval: logs this rank's memory in MiB every `interval` iterations, on every rank."""

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_step_end(self, state: TrainingState) -> None:
        if state.iteration % self.interval == 0:
            held = {name: value / 2**20 for name, value in memory_bytes().items()}
            sizes = ", ".join(f"{name.removesuffix('-bytes')} {value:.1f}" for name, value in held.items())
            log(f"Memory of rank {parallel_state.get_global_rank()} after {state.iteration} iterations (MiB): {sizes}")
