"""Attention sinks of MindSpore operators: a block with one score for each head and no value joins the others."""

from functools import partial as bound

import mindspore
from mindspore import Tensor, ops

from pynative.kernels.block import Partial
from pynative.kernels.ops.elementwise import cast
from pynative.kernels.ops.linear import delivered
from pynative.tape.autograd import add_weight_gradient


def with_sinks(partial: Partial, sinks: Tensor, first: int = 0) -> Partial:
    out, maximum, inverse_sum = partial
    own = _own(sinks, first, maximum)
    highest = ops.maximum(maximum, own)
    weight = ops.exp(maximum - highest) / inverse_sum
    inverse = 1 / (weight + ops.exp(own - highest))
    by_head = out.reshape(*out.shape[:2], maximum.shape[1], -1) * (weight * inverse).permute(2, 0, 1).expand_dims(-1)
    return Partial(by_head.reshape(out.shape), highest, inverse)


def sinks_gradient(partial: Partial, sinks: Tensor, first: int, dout: Tensor) -> Tensor | None:
    out, maximum, inverse_sum = partial
    heads = maximum.shape[1]
    products = (cast(dout, mindspore.float32) * out).reshape(*out.shape[:2], heads, -1).sum(axis=-1)
    probabilities = ops.exp(_own(sinks, first, maximum) - maximum) * inverse_sum
    own = -(probabilities * products.permute(1, 2, 0)).sum(axis=(0, 2))
    others = [ops.zeros((count,), mindspore.float32) for count in (first, sinks.shape[0] - first - heads)]
    return add_weight_gradient(sinks, bound(delivered, ops.cat((others[0], own, others[1]))))


def _own(sinks: Tensor, first: int, maximum: Tensor) -> Tensor:
    """The sinks of this rank's heads, from `first` on, as float32 [n, s], the same for all rows; maximum [b, n, s]
    gives the shape."""
    heads, rows = maximum.shape[1:]
    own = cast(sinks, mindspore.float32)[first : first + heads]
    return ops.broadcast_to(own.expand_dims(-1), (heads, rows))
