"""The whole Ascend stack on doubles: a process that takes itself for a rank with an Ascend."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import mindspore
from mindspore import mint

from parallel_core.config import AllConfig
from pynative import kernels, parallel_state
from pynative.collectives import Backend
from pynative.collectives.hccl import HcclBackend
from pynative.kernels.ops import activation
from pynative.startup import device
from pynative.training.utils import set_parallel_context, set_seed
from tests.support.ascend import flash_attention, hccl, memory, operators, sixteen_bits
from tests.support.ascend.streams import Posted

DOUBLES = (*operators.DOUBLES, *flash_attention.DOUBLES)

_get_context = mindspore.get_context


def get_context(attribute: str) -> object:
    """The double of mindspore.get_context on an Ascend."""
    return "Ascend" if attribute == "device_target" else _get_context(attribute)


@contextmanager
def ascend_operators() -> Iterator[None]:
    """Within the context the device is an Ascend and its operators are doubles."""
    with ExitStack() as stack:
        checked = [(double, double.checked()) for double in DOUBLES]
        for double, function in checked:
            stack.enter_context(patch.object(double.owner, double.name, function))
        for owner, name, function in sixteen_bits.replacements():
            stack.enter_context(patch.object(owner, name, function))
        stack.enter_context(patch.dict(activation.ACTIVATIONS, sixteen_bits.ACTIVATIONS))
        for name, function in memory.REPLACED.items():
            stack.enter_context(patch.object(mint, name, function))
        stack.enter_context(patch.object(mindspore, "get_context", get_context))
        yield


def over_hccl(carrier: Backend, body: Callable, *args: object) -> object:
    """The result of `body(backend, *args)` on this rank of `carrier`, with an HCCL backend on doubles that send through
    `carrier`."""
    with ascend_operators(), hccl.communication(carrier):
        backend = HcclBackend(timeout_minutes=1.0)
        try:
            return body(backend, *args)
        finally:
            backend.close()


@contextmanager
def ascend_job(carrier: Backend, config: AllConfig) -> Iterator[list[Posted]]:
    """Within the context this rank of `carrier` has gone through `set_parallel_context` with an Ascend on doubles;
    yields the calls that it posts to HCCL."""
    hook, job = sys.excepthook, hccl.communication(carrier)
    with ascend_operators(), job as posted, patch.object(device, "has_ascend", lambda: True):
        set_parallel_context(config.parallel_config)
        set_seed(config.training_config.seed)
        backend = parallel_state.get_backend()
        try:
            assert isinstance(backend, HcclBackend) and kernels.active() == "ops"
            yield posted
            backend.close()
        finally:
            parallel_state.destroy_model_parallel()
            sys.excepthook = hook
    kernels.use("host", threads=1)
