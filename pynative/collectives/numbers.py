"""Reductions of a few numbers over a group."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative.collectives.interface import Group

HIGH_PART = 4096.0
"""Numbers travel as a multiple of this and the rest: a batch's tokens may be more than the 2^24 up to which float32 has
all whole numbers. Sums of counts over up to 4096 ranks are exact up to 2^36."""


def sum_over_group(values: Sequence[float], group: Group) -> list[float]:
    """A list whose i-th entry is the sum over the group's ranks of their i-th numbers. Each number travels as two in
    float32, which may round it; a group of one returns its own. All ranks of the group call this with equally many."""
    if group.size == 1:
        return list(values)
    whole = np.array(values, np.float64)
    high = np.trunc(whole / HIGH_PART)  # `floor` would lose the digits of a small negative number
    rest = np.where(np.isfinite(whole), whole - np.where(np.isfinite(high), high, 0) * HIGH_PART, 0)
    sums = group.all_reduce(Tensor(np.stack([high, rest]).astype(np.float32))).asnumpy().astype(np.float64)
    return [float(number) for number in sums[0] * HIGH_PART + sums[1]]


def largest_over_group(values: Array, group: Group) -> Array:
    """The elementwise largest of the ranks' float32 arrays, which have one shape; `values` itself in a group of one.
    All ranks of the group call this."""
    return values if group.size == 1 else np.asarray(group.all_reduce(Tensor.from_numpy(values), op="max").asnumpy())


def over_group(value: float, group: Group, op: str = "sum") -> float:
    """The "sum", "max" or "min" of the ranks' numbers, in float32; all ranks of the group call this."""
    return float(group.all_reduce(Tensor(np.array([value], np.float32)), op=op).asnumpy()[0])
