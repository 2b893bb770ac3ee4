"""Sums of a few numbers over a group."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from pynative.collectives.interface import Group


def sum_over_group(values: Sequence[float], group: Group) -> list[float]:
    """Each number's sum over the ranks, in float32; every rank must give equally many."""
    if group.size == 1:
        return list(values)
    return [float(total) for total in group.all_reduce(Tensor(np.array(values, np.float32))).asnumpy()]
