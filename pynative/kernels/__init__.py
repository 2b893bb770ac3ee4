# ruff: noqa: F403 - the names are what the engine calls as `kernels.linear_forward(...)`.
"""Kernels: the operators that a GPT model is made of, one name each, several implementations.

`host` computes with oneDNN or numpy (the default on a CPU), `ops` with MindSpore operators; on an Ascend the fused ones
of `ascend` go before those of `ops`. `use` selects for the whole process, like a device: it is a property of the
hardware, not of a model. `contract` says what an operator is, `selection.py` which function serves it.

`kernels.linear_forward` is the selected implementation itself: a call costs what a call of a function costs. Names are
therefore looked up in this module when they are called; `from pynative.kernels import linear_forward` would keep one
implementation forever.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import mindspore

from parallel_core.config.fused import NOTHING_FUSED, FusedOperators
from pynative.kernels import selection
from pynative.kernels.contract import CONTRACT
from pynative.kernels.host import process

if TYPE_CHECKING:  # `_select` gives these names their values
    from pynative.kernels.contract.attention import *
    from pynative.kernels.contract.entries import *
    from pynative.kernels.contract.exchange import *
    from pynative.kernels.contract.experts import *
    from pynative.kernels.contract.flat_buffers import *
    from pynative.kernels.contract.layer import *
    from pynative.kernels.contract.linear import *
    from pynative.kernels.contract.recurrent import *
    from pynative.kernels.contract.sparse import *
    from pynative.kernels.contract.streams import *
    from pynative.kernels.contract.vocabulary import *

_selected: str


def use(implementation: str | None = None, threads: int | None = None, fused: FusedOperators = NOTHING_FUSED) -> None:
    """Select the implementation for this process, and set up threads, BLAS and memory for operators on a CPU; call it
    before any operator.

    Without a call operators are the host's, their rows not split over threads, and BLAS and memory are as they were.

    implementation: "host", "ops", or None for the device's own: host on a CPU, ops on an Ascend.
    threads: CPU threads that host kernels use, the calling one included (None: 1).
    fused: operators that are to have their fused form, where the implementation has one.

    Raises ValueError for an implementation that the device does not have, and for fewer than 1 thread.
    """
    device = mindspore.get_context("device_target")
    _select(selection.implementation_on(device, implementation), device, fused)
    process.prepare(1 if threads is None else threads)


@contextmanager
def on_host() -> Iterator[None]:
    """Use the host's operators, for tensors in the host's memory, within the block, whichever are selected; `active`
    keeps its value."""
    selected = {name: globals()[name] for name in CONTRACT}
    globals().update(selection.merged(selection.STACKS["host", "CPU"].tables(NOTHING_FUSED)))
    try:
        yield
    finally:
        globals().update(selected)


@contextmanager
def watched(watch: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace each operator by `watch(name, operator)` within the block."""
    selected = {name: globals()[name] for name in CONTRACT}
    globals().update({name: watch(name, operator) for name, operator in selected.items()})
    try:
        yield
    finally:
        globals().update(selected)


def active() -> str:
    """Name of the implementation that `use` selected, "host" or "ops"; "host" before a call."""
    return _selected


def _select(implementation: str, device: str, fused: FusedOperators) -> None:
    global _selected
    stack = selection.STACKS[implementation, device]
    globals().update(selection.merged(stack.tables(fused)))
    _selected = implementation


_select("host", "CPU", NOTHING_FUSED)
