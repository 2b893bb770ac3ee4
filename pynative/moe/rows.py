"""Rows copied or left out, as steps of the tape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from mindspore import Tensor

from parallel_core.token_dispatch import Copies
from pynative import kernels
from pynative.autograd import Function

Move: TypeAlias = Callable[[Tensor], Tensor]


class Moved(Function):
    """A move forward, its transpose backward."""

    @staticmethod
    def forward(ctx, x, move, transpose):
        ctx.transpose = transpose
        return move(x)

    @staticmethod
    def backward(ctx, dy):
        return ctx.transpose(dy), None, None


def copied_rows(x: Tensor, copies: Copies) -> Tensor:
    """x [n, ...] -> [r, ...]: the rows that the copies are of, zeros for none."""
    shape = tuple(x.shape)
    copy = partial(kernels.gather_rows, sources=copies.sources, row=shape[1:])
    return Moved.apply(x, copy, partial(kernels.sum_rows, places=copies.places, shape=shape))
