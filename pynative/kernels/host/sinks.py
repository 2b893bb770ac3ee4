"""Attention sinks on the host: a block with one score for each head and no value, put together with the others."""

import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import Partial
from pynative.kernels.host.arrays import add_summed_gradient
from pynative.memory.arrays import array_of, writable
from pynative.memory.rounding import widened


def with_sinks(partial: Partial, sinks: Tensor, first: int = 0) -> Partial:
    out, maximum, inverse_sum = map(writable, partial)
    own = _own(sinks, first, maximum.shape[1])
    highest = np.maximum(maximum, own)
    weight = np.exp(maximum - highest) / inverse_sum
    inverse = 1 / (weight + np.exp(own - highest))
    by_head = out.reshape(*out.shape[:2], maximum.shape[1], -1)
    by_head *= (weight * inverse).transpose(2, 0, 1)[..., None]
    maximum[...], inverse_sum[...] = highest, inverse
    return partial


def sinks_gradient(partial: Partial, sinks: Tensor, first: int, dout: Tensor) -> Tensor | None:
    out, maximum, inverse_sum = map(array_of, partial)
    heads = maximum.shape[1]
    shape = (*out.shape[:2], heads, -1)
    delta = np.einsum("sbne,sbne->bns", widened(array_of(dout)).reshape(shape), out.reshape(shape))
    probabilities = np.exp(_own(sinks, first, heads) - maximum) * inverse_sum
    gradient = np.zeros(sinks.shape, np.float32)
    gradient[first : first + heads] = -np.einsum("bns,bns->n", probabilities, delta)
    return add_summed_gradient(sinks, gradient)


def _own(sinks: Tensor, first: int, heads: int) -> Array:
    """The sinks of this rank's heads, from `first` on, as float32 [n, 1]."""
    return widened(array_of(sinks))[first : first + heads, None]
