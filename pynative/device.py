"""Prepare this process's device: MindSpore's mode, and which operators run on it."""

import os

import mindspore as ms

from pynative import kernels

DEFAULT_KERNELS = {"CPU": "host", "Ascend": "ops"}
DEFAULT_COLLECTIVES = {"CPU": "shared_memory", "Ascend": "native"}


def threads_of_a_rank(world_size: int) -> int:
    """The CPU's cores shared out over the ranks of this host."""
    return max(1, len(os.sched_getaffinity(0)) // world_size)


def initialize(device_target: str, kernel_set: str | None, threads: int | None, world_size: int) -> None:
    """Select dynamic-graph mode, the device, and its operators.

    On a CPU launches are made blocking: asynchronous ones make the main thread spin on the core that the work needs.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)
    if ms.get_context("device_target") != device_target:  # once a device computes, setting even the same one is refused
        ms.set_device(device_target)
    if device_target == "CPU":
        ms.runtime.launch_blocking()
    kernels.use(kernel_set or DEFAULT_KERNELS[device_target], threads or threads_of_a_rank(world_size))
