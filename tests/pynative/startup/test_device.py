"""The device of a process: by --device-target, by the script's set_context, or what the host has."""

from types import SimpleNamespace

import mindspore as ms
import pytest

from pynative.kernels.host.engine import NumpyEngine, onednn
from pynative.startup import device
from tests.support import warm

SILENT, NOTICE = False, True
CASES = {
    # (--device-target, MindSpore's context before and at the start, an Ascend is there): (device, a line is logged)
    "nothing, no Ascend": ((None, "CPU", "CPU", False), ("CPU", SILENT)),
    "nothing, an Ascend": ((None, "Ascend", "Ascend", True), ("Ascend", SILENT)),
    "nothing, an Ascend's package without a device": ((None, "Ascend", "Ascend", False), ("CPU", NOTICE)),
    "the script's Ascend": ((None, "CPU", "Ascend", True), ("Ascend", SILENT)),
    "the script's Ascend, which is not there": ((None, "CPU", "Ascend", False), ("Ascend", SILENT)),
    "the script's CPU": ((None, "Ascend", "CPU", True), ("CPU", NOTICE)),
    "the flag alone": (("CPU", "CPU", "CPU", False), ("CPU", SILENT)),
    "the flag's CPU beside an Ascend": (("CPU", "Ascend", "Ascend", True), ("CPU", NOTICE)),
    "the flag's Ascend": (("Ascend", "CPU", "CPU", True), ("Ascend", SILENT)),
    "flag and script agree": (("Ascend", "CPU", "Ascend", True), ("Ascend", SILENT)),
}


def set_up(monkeypatch, at_import: str, context: str, ascend: bool) -> None:
    """Fake a host with or without an Ascend, and the device target that MindSpore had at our import and has now."""
    monkeypatch.setattr(device, "_CONTEXT_AT_IMPORT", at_import)
    monkeypatch.setattr(ms, "get_context", lambda attribute: context)
    monkeypatch.setattr(device, "has_ascend", lambda: ascend)
    monkeypatch.delenv("MS_ROLE", raising=False)


@pytest.mark.parametrize("name", CASES)
def test_the_device_of_a_process(monkeypatch, name):
    """`choose` gives each of CASES its device, and a notice for the log only if the case says so."""
    (asked, *host), (target, says) = CASES[name]
    set_up(monkeypatch, *host)
    choice = device.choose(asked)
    assert (choice.target, choice.notice is not None) == (target, says)


@pytest.mark.parametrize(("asked", "context"), [("CPU", "Ascend"), ("Ascend", "CPU")])
def test_a_contradiction_names_both(monkeypatch, asked, context):
    """A --device-target other than the script's set_context is a ValueError that names both."""
    set_up(monkeypatch, asked, context, True)
    with pytest.raises(ValueError, match=rf"--device-target {asked}: .*set_context\(device_target='{context}'\)"):
        device.choose(asked)


@pytest.mark.parametrize("ascend", [True, False])
def test_the_scheduler_follows_the_host(monkeypatch, ascend):
    """In msrun's scheduler, where MindSpore turns the script's Ascend to CPU, the target is the host's device; with an
    error the scheduler would leave and the workers wait for it."""
    set_up(monkeypatch, "Ascend", "CPU", ascend)
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    assert device.choose(None).target == ("Ascend" if ascend else "CPU")
    assert device.choose("CPU").target == "CPU"


def test_an_ascend_that_hides_overflows_is_refused(monkeypatch):
    """An Ascend in saturation mode, which makes 65504 of a float16 overflow and 0 of NaN, is an error: no loss scaler
    would see an overflow."""
    set_up(monkeypatch, "Ascend", "Ascend", True)
    monkeypatch.setenv("MS_ASCEND_CHECK_OVERFLOW_MODE", "INFNAN_MODE")
    device.check_available("Ascend")
    monkeypatch.setenv("MS_ASCEND_CHECK_OVERFLOW_MODE", "SATURATION_MODE")
    device.check_available("CPU")
    with pytest.raises(ValueError, match=r"SATURATION_MODE.*unset it"):
        device.check_available("Ascend")


def test_the_log_names_what_host_operators_compute_with(monkeypatch):
    """`engine_notice` names oneDNN where the wheel brings it, else numpy; with kernels other than `host`
    there is none."""
    assert device.engine_notice() == f"CPU kernels: {'oneDNN' if onednn.is_available() else 'numpy'}"
    monkeypatch.setattr(device, "ENGINE", NumpyEngine())
    assert device.engine_notice() == "CPU kernels: numpy"
    monkeypatch.setattr(device.kernels, "active", lambda: "ops")
    assert device.engine_notice() is None


class ThreadsOfMindSpore:
    """A double of MindSpore's RuntimeConf: each number of threads can be set once in a process."""

    def __init__(self) -> None:
        self.dispatching = self.computing = None

    def is_dispatch_threads_num_configured(self) -> bool:
        return self.dispatching is not None

    def is_op_threads_num_configured(self) -> bool:
        return self.computing is not None

    def set_dispatch_threads_num(self, number: int) -> None:
        assert self.dispatching is None
        self.dispatching = number

    def set_op_threads_num(self, number: int) -> None:
        assert self.computing is None
        self.computing = number


@pytest.mark.parametrize("threads", [1, 2])
def test_mindspores_pool_has_the_threads_of_our_kernels(monkeypatch, threads):
    """Dispatching and computing threads of MindSpore together are as many as the kernels' threads, set once: a later
    job in the process keeps them."""
    settings = ThreadsOfMindSpore()
    monkeypatch.setattr(device, "RuntimeConf", SimpleNamespace(get_instance=lambda: settings))
    device.initialize("CPU", "host", threads=threads, world_size=1)
    assert settings.dispatching + settings.computing == threads
    device.initialize("CPU", "host", threads=3, world_size=1)
    assert settings.dispatching + settings.computing == threads
    device.initialize("CPU", "host", threads=1, world_size=1)


@pytest.mark.parametrize(
    ("dispatching", "computing", "found"), [(None, 7, (None, 7)), (3, None, (3, 0)), (3, 7, (3, 7))]
)
def test_a_script_that_sets_its_threads_keeps_them(monkeypatch, dispatching, computing, found):
    """A number of threads that the script has set stays; if it set the dispatching ones only, computing ones are left
    at 0, MindSpore's own number being 25."""
    settings = ThreadsOfMindSpore()
    settings.dispatching, settings.computing = dispatching, computing
    monkeypatch.setattr(device, "RuntimeConf", SimpleNamespace(get_instance=lambda: settings))
    device.initialize("CPU", "host", threads=1, world_size=1)
    assert (settings.dispatching, settings.computing) == found


TAPE = """
import os, numpy as np
from mindspore import Tensor
from pynative.startup import device
from pynative.tape.autograd import Function, backward, leaf, recording

class Same(Function):
    forward = staticmethod(lambda ctx, x: Tensor.from_numpy(x.asnumpy()))
    backward = staticmethod(lambda ctx, gradient: gradient)

device.initialize("CPU", "host", threads=1, world_size=1)
with recording():
    x = leaf(Tensor.from_numpy(np.ones(1, np.float32)))
    backward([Same.apply(x)], [Tensor.from_numpy(np.ones(1, np.float32))])
print(x._grad, [open(f"/proc/self/task/{thread}/comm").read().strip() for thread in os.listdir("/proc/self/task")])
"""


def test_a_backward_passes_through_no_thread():
    """On a CPU the main thread runs the backward itself, in a process without one of MindSpore's operators, too: its
    threads `bprop_queue` and `backend_queue`, for which it would spin, are not there."""
    done = warm.run(["-c", TAPE])
    assert done.returncode == 0, done.stderr
    assert "[1.]" in done.stdout and "queue" not in done.stdout, done.stdout
