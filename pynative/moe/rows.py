"""Rows copied or left out, as steps of the tape."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from mindspore import Tensor

from parallel_core.moe.token_dispatch import Copies
from pynative import kernels
from pynative.tape.autograd import Moved

Move: TypeAlias = Callable[[Tensor], Tensor]


def copied_rows(x: Tensor, copies: Copies) -> Tensor:
    """x [n, ...] -> [r, ...]: the rows that the copies are of, zeros for none."""
    shape = tuple(x.shape)
    copy = partial(kernels.gather_rows, sources=copies.sources, row=shape[1:])
    return Moved.apply(x, copy, partial(kernels.sum_rows, places=copies.places, shape=shape))
