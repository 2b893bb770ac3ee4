"""Prepare this process's device: MindSpore's mode, and which operators run on it."""

import os
from pathlib import Path

import mindspore as ms

from parallel_core.config.fused import NOTHING_FUSED, FusedOperators
from pynative import kernels
from pynative.kernels.host import blas
from pynative.kernels.host.process import cores_of_a_rank

DEFAULT_COLLECTIVES = {"CPU": "shared_memory", "Ascend": "native"}


def check_available(device_target: str) -> None:
    """Refuse a device that this host does not have, in every process, msrun's scheduler among them.

    MindSpore says so only in the workers, and its scheduler then waits for them for minutes. The driver of an Ascend
    makes /dev/davinci*; a dry run (MS_SIMULATION_LEVEL) needs none.
    """
    if device_target == "Ascend" and not (any(Path("/dev").glob("davinci*")) or "MS_SIMULATION_LEVEL" in os.environ):
        raise ValueError(
            "--device-target Ascend: this host has no Ascend device (/dev/davinci*); start on one that has, or use "
            "--device-target CPU"
        )


def fused_notice(device_target: str, fused: FusedOperators) -> str | None:
    """One line where a device lacks the fused operators that are asked for."""
    if device_target != "CPU" or not fused.operators:
        return None
    return f"No fused kernels on a CPU; the same mathematics runs in a memory-frugal form for: {fused}"


def initialize(
    device_target: str,
    kernel_set: str | None,
    threads: int | None,
    world_size: int,
    fused: FusedOperators = NOTHING_FUSED,
) -> None:
    """Select dynamic-graph mode, the device, and its operators, `fused` ones among them.

    On a CPU launches are made blocking: asynchronous ones make the main thread spin on the core that the work needs.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)
    if ms.get_context("device_target") != device_target:  # once a device computes, setting even the same one is refused
        ms.set_device(device_target)
    if device_target == "CPU":
        ms.runtime.launch_blocking()
    kernels.use(kernel_set, threads or cores_of_a_rank(world_size), fused)


def blas_notice() -> str | None:
    """One line where this process's matrix products run slower than its CPU could, with the way out."""
    return blas.notice() if kernels.active() == "host" else None
