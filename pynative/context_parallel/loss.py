"""Sums over the ranks that share a sequence: each has the losses and tokens of a piece."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from pynative import kernels
from pynative.collectives import Group
from pynative.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region


def sum_over_group(values: Sequence[float], group: Group) -> list[float]:
    """Each number's sum over the ranks, which must give equally many."""
    if group.size == 1:
        return list(values)
    return [float(total) for total in group.all_reduce(Tensor(np.array(values, np.float32))).asnumpy()]


def masked_mean_over_group(losses: Tensor, mask: Tensor | None, group: Group) -> Tensor:
    """`kernels.masked_mean` over the tokens of all ranks: the same scalar on each, from losses [...] of its piece.

    Each rank's gradient is that of its own losses: summed over the group, gradients of parameters are the mean's.
    A piece without a token that counts adds zeros.
    """
    if group.size == 1:
        return kernels.masked_mean(losses, mask)
    own = losses.size if mask is None else float(mask.asnumpy().sum(dtype=np.float64))
    (count,) = sum_over_group([own], group)
    return reduce_from_tensor_model_parallel_region(kernels.masked_mean(losses, mask, count), group)
