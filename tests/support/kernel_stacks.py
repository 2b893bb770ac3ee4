"""Every stack of kernels by name, an Ascend's on doubles, and the floating-point types."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import mindspore

from parallel_core.config.fused import NAMES, FusedOperators
from pynative import kernels
from tests.support.ascend.stack import ascend_operators

ROUNDING = {mindspore.float32: 2.0**-24, mindspore.float16: 2.0**-11, mindspore.bfloat16: 2.0**-8}
"""Floating-point type -> half a unit in the last place, relative."""

FUSED = FusedOperators(tuple(NAMES))
STACKS = {
    "host": ("host", False, FusedOperators(())),
    "ops": ("ops", False, FusedOperators(())),
    "ops frugal": ("ops", False, FUSED),
    "ascend": ("ops", True, FusedOperators(())),
    "ascend fused": ("ops", True, FUSED),
}


@contextmanager
def selected(stack: str) -> Iterator[None]:
    """Within the context the operators of that stack are in use."""
    implementation, on_ascend, fused = STACKS[stack]
    with ascend_operators() if on_ascend else nullcontext():
        kernels.use(implementation, fused=fused)
        yield
