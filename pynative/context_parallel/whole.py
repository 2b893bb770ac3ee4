"""Gathering of a sequence that is cut over the context-parallel group, recorded on the tape."""

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
    """(The positions of the whole sequence in the order in which the ranks' shards, one after the other, have them; the
    index of each position there), int32 [length] each."""
    order = layout.order(length).astype(np.int32)
    return order, np.argsort(order).astype(np.int32)


def _reordered(x: Tensor, places: Array) -> Tensor:
    return kernels.gather_rows(x, places, tuple(x.shape[1:]))


def whole_sequence(x: Tensor, group: Group, layout: ContextLayout) -> Tensor:
    """x [s/c, ...], a shard of one of c ranks -> [s, ...], in the sequence's order on every rank. The backward sums the
    ranks' gradients and gives each its shard. On the tape; one all-gather forward and one reduce-scatter backward. A
    group of one returns x."""
    if group.size == 1:
        return x
    order, places = _orders(layout, len(x) * group.size)

    def gather(x: Tensor) -> Tensor:
        return _reordered(group.all_gather(x, axis=0), places)

    def sum_and_cut(gradient: Tensor) -> Tensor:
        return group.reduce_scatter(_reordered(gradient, order), axis=0)

    return Moved.apply(x, gather, sum_and_cut)
