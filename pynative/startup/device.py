"""Prepare this process's device: MindSpore's mode, and which operators run on it."""

import os
from typing import NamedTuple

import mindspore as ms
from mindspore.device_context.cpu.op_tuning import RuntimeConf

from parallel_core.config.fused import NOTHING_FUSED, FusedOperators
from parallel_core.system.environment import has_ascend
from pynative import collectives, kernels
from pynative.kernels.host import blas
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.process import cores_of_a_rank

DEFAULT_COLLECTIVES = {"CPU": "shared_memory", "Ascend": "native"}


_CONTEXT_AT_IMPORT = ms.get_context("device_target")
"""MindSpore's device when this module was imported: its package's choice, unless the script had set one before."""


class Choice(NamedTuple):
    """The device that a process computes on, "CPU" or "Ascend". notice: a line for the log where one might expect
    another device, else None."""

    target: str
    notice: str | None = None
    """One line for the log, where MindSpore's context or the host would have let one expect another device; None:
    none."""


def choose(asked: str | None) -> Choice:
    """The device, with its notice: `asked` (`--device-target`); if that is None, the one of MindSpore's context, which
    the script or MindSpore's package chose, but the CPU where the context has an Ascend, had it when this module was
    imported, and the host has none.

    msrun's scheduler cannot know what the script set, because MindSpore resets an Ascend to CPU there; without `asked`
    it takes an Ascend if the host has one, else the CPU. So on a host with an Ascend a script that sets the CPU needs
    the flag, too. Raises ValueError, not in the scheduler, if `asked` is given and MindSpore's context has a device
    that is neither `asked` nor the one that it had when this module was imported.
    """
    if collectives.is_scheduler():
        return Choice(asked or ("Ascend" if has_ascend() else "CPU"))
    context = ms.get_context("device_target")
    if asked is None:
        if context == "Ascend" and context == _CONTEXT_AT_IMPORT and not has_ascend():
            return Choice("CPU", "Device: CPU. MindSpore is set up for an Ascend, but this host has none")
        ignored = context == "CPU" and has_ascend()
        return Choice(context, "Device: CPU, as MindSpore's context says. This host has an Ascend" if ignored else None)
    if context not in (asked, _CONTEXT_AT_IMPORT):
        raise ValueError(
            f"--device-target {asked}: the script chose {context} by mindspore.set_context(device_target={context!r}) "
            f"or set_device; remove one of the two"
        )
    is_other = asked != context == "Ascend"
    return Choice(asked, f"Device: {asked}. MindSpore's context says {context}" if is_other else None)


def check_available(device_target: str) -> None:
    """Raise ValueError for an Ascend that this host does not have, in msrun's scheduler, too, which would otherwise
    wait for the ranks.

    Also raised for an Ascend in saturation mode (overflow gives the largest number, NaN gives 0): losses and gradient
    norms could not be tested for being finite.
    """
    if device_target == "Ascend" and not has_ascend():
        raise ValueError(
            "--device-target Ascend: this host has no Ascend device (/dev/davinci*); start on one that has, or use "
            "--device-target CPU"
        )
    if device_target == "Ascend" and os.environ.get("MS_ASCEND_CHECK_OVERFLOW_MODE") == "SATURATION_MODE":
        raise ValueError(
            "MS_ASCEND_CHECK_OVERFLOW_MODE=SATURATION_MODE: an overflow would not be seen, nor a loss that is not a "
            "number; unset it, INFNAN_MODE is the default of every Ascend that trains bfloat16"
        )


def fused_notice(device_target: str, fused: FusedOperators) -> str | None:
    """One line for the log where fused operators are asked for on a CPU, which has none; else None."""
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
    """Select dynamic-graph mode, the device, and the stack of operators (`kernel_set`; None: the device's default).

    threads: of the operators of this process; None or 0: the cores that it may use divided by `world_size`, at least 1.
    fused: the operators that flags ask to be fused. On a CPU launches are made blocking: asynchronous ones make the
    main thread spin on the core that the work needs; there MindSpore's own thread pool gets that number of threads,
    too, unless its number is set already, by the script or an earlier call. An operator runs at once, since MindSpore
    begins to keep these settings with its first one.
    """
    ms.set_context(mode=ms.PYNATIVE_MODE)
    # MindSpore refuses to set the device once it computes, even to the same one
    if ms.get_context("device_target") != device_target:
        ms.set_device(device_target)
    if device_target == "CPU":
        ms.runtime.launch_blocking()
        _limit_pool(threads or cores_of_a_rank(world_size))
        # before it backwards go through threads for which the main thread spins: on one core 4.6 ms each, not 0.04
        ms.ops.stop_gradient(ms.Tensor([1.0]))
    kernels.use(kernel_set, threads or cores_of_a_rank(world_size), fused)


def _limit_pool(threads: int) -> None:
    """Give MindSpore's thread pool as many threads as our kernels have; a number that is set already, by the script or
    for another job of this process, stays.

    The pool is one dispatching thread, which computes as well, and the operators' threads. With no other than the
    dispatching one, operators run in the calling thread; otherwise a matrix product is handed over, however small, and
    the caller spins until a core was free for it. `op_tuning.threads_num` is this call, but refuses 0.
    """
    runtime = RuntimeConf.get_instance()
    if runtime.is_op_threads_num_configured():
        return
    if not runtime.is_dispatch_threads_num_configured():
        runtime.set_dispatch_threads_num(1)
    runtime.set_op_threads_num(threads - 1)


def engine_notice() -> str | None:
    """One line for the log that names the engine of the host's operators; None if other operators are active."""
    return f"CPU kernels: {ENGINE.name}" if kernels.active() == "host" else None


def blas_notice() -> str | None:
    """One line for the log, with the remedy, where the host's operators are active and an OpenBLAS of this process is
    known to multiply matrices slower than this CPU could; else None."""
    return blas.notice() if kernels.active() == "host" else None
