"""Hyper-connections of MindSpore operators; streams are read and written in float32. The tape differentiates
these operators.

T tokens; other letters are those of `contract/streams.py`.
"""

from functools import lru_cache

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.numerics.hyper_connections import StreamRule
from pynative.kernels.ops.elementwise import cast

FLOAT32 = mindspore.float32

_by_transposed = ops.MatMul(transpose_b=True)


def repeat_streams(x: Tensor, streams: int) -> Tensor:
    return ops.cat((x,) * streams, -1)


@lru_cache(maxsize=8)
def _groups(rule: StreamRule) -> Tensor:
    """Int32 [m]: for each result of the linear the number of the group whose scale it has."""
    numbers = np.zeros(rule.width, np.int32)
    for number, group in enumerate(rule.groups):
        numbers[group] = number
    return Tensor(numbers)


def _shifted(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> Tensor:
    """The linear's results scaled by group and shifted, [T, m], of tokens x float32 [T, n h]: weight, base, scale as in
    `read_streams`."""
    inverse = ops.rsqrt((x * x).mean(-1, keep_dims=True) + rule.norm_epsilon)
    factors = ops.gather(cast(scale, FLOAT32), _groups(rule), 0)
    return _by_transposed(x, cast(weight, FLOAT32)) * inverse * factors + cast(base, FLOAT32)


def _by_pre(x: Tensor, u: Tensor, rule: StreamRule) -> Tensor:
    """The sum [T, h] of the streams x [T, n, h], each times sigmoid(u) + epsilon, u [T, n]."""
    pre = ops.sigmoid(u) + rule.epsilon
    return (pre.expand_dims(-1) * x).sum(1)


def _streams(x: Tensor, count: int) -> Tensor:
    return cast(x, FLOAT32).reshape(-1, count, x.shape[-1] // count)


def collapse_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> Tensor:
    last = StreamRule(rule.streams, 0, rule.epsilon, rule.norm_epsilon)
    streams = _streams(x, rule.streams)
    u = _shifted(streams.reshape(len(streams), -1), weight, base, scale, last)
    return cast(_by_pre(streams, u, rule), x.dtype).reshape(*x.shape[:-1], -1)


def read_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> tuple[Tensor, Tensor]:
    n, streams = rule.streams, _streams(x, rule.streams)
    u = _shifted(streams.reshape(len(streams), -1), weight, base, scale, rule)
    comb = ops.softmax(u[:, 2 * n :].reshape(-1, n, n), -1) + rule.epsilon
    for axis in (1, *(2, 1) * (rule.iterations - 1)):
        comb = comb / (comb.sum(axis, keepdims=True) + rule.epsilon)
    weights = ops.cat((2 * ops.sigmoid(u[:, n : 2 * n]), comb.reshape(-1, n * n)), -1)
    lead = x.shape[:-1]
    return cast(_by_pre(streams, u[:, :n], rule), x.dtype).reshape(*lead, -1), weights.reshape(*lead, -1)


def write_streams(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    n = x.shape[-1] // y.shape[-1]
    streams, given = _streams(x, n), weights.reshape(-1, n + n * n)
    output = cast(y, FLOAT32).reshape(-1, 1, y.shape[-1])
    mixed = ops.bmm(given[:, n:].reshape(-1, n, n).swapaxes(1, 2), streams)
    return cast(given[:, :n].expand_dims(-1) * output + mixed, x.dtype).reshape(x.shape)
