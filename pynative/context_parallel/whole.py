"""A sequence that is cut over the context-parallel group, whole on each of its ranks."""

from functools import lru_cache

import numpy as np
from mindspore import Tensor

from parallel_core.context import ContextLayout
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.collectives import Group
from pynative.tape.autograd import Moved


@lru_cache(maxsize=16)
def _orders(layout: ContextLayout, length: int) -> tuple[Array, Array]:
    """Int32 [s] each, the same for all micro-batches: the positions in the order in which ranks have them, and the
    place of each of them there."""
    order = layout.order(length).astype(np.int32)
    return order, np.argsort(order).astype(np.int32)


def _reordered(x: Tensor, places: Array) -> Tensor:
    return kernels.gather_rows(x, places, tuple(x.shape[1:]))


def whole_sequence(x: Tensor, group: Group, layout: ContextLayout) -> Tensor:
    """x [s/c, ...] of c ranks -> [s, ...] in the sequence's order; each rank's gradient is its share of a sum.

    Recorded; one all-gather forward and one reduce-scatter backward."""
    if group.size == 1:
        return x
    order, places = _orders(layout, len(x) * group.size)

    def gather(x: Tensor) -> Tensor:
        return _reordered(group.all_gather(x, axis=0), places)

    def sum_and_cut(gradient: Tensor) -> Tensor:
        return group.reduce_scatter(_reordered(gradient, order), axis=0)

    return Moved.apply(x, gather, sum_and_cut)
