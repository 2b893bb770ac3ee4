"""Weights of hyper-connections (mHC, Xie et al., 2026): how a block reads n residual streams, and how they go on.

A linear over all streams of a token gives m = n + n + n n numbers, from which follow `pre` (a block's input is the sum
of pre_i stream_i), `post` and `comb` (afterwards stream_k is post_k output + sum_j comb_jk stream_j). Rows and columns
of comb are divided by their sums in turn, which brings it near a doubly stochastic matrix (Sinkhorn and Knopp, 1967).
Where streams are only read, there are n numbers, for pre.

T tokens, which are the last axis: the linear's results u [m, T], comb [n, n, T] with rows j first.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array


@dataclass(frozen=True)
class StreamRule:
    """The settings of one hyper-connection, whose weights are `StreamWeights`: the number of streams; how often columns
    of `comb` are divided by their sums (`iterations`; 0: streams are only read, without `post` and `comb`); `epsilon`,
    added to `pre`, to `comb` and to its sums; `norm_epsilon`, added to the mean square of a token's streams."""

    streams: int
    """The number of residual streams, n."""
    iterations: int
    """The number of times that columns of `StreamWeights.comb` are divided by their sums (rows one time fewer, after a
    softmax of each); 0: streams are only read, and there is neither post nor comb."""
    epsilon: float
    """Added to `pre` of `StreamWeights`, to `comb` before it is divided by its sums, and to these sums."""
    norm_epsilon: float
    """Added to the mean square of a token's streams, by whose root they are divided."""

    @property
    def width(self) -> int:
        """The number m of the linear's results: 2 n + n^2, or n where streams are only read."""
        return self.streams * (2 + self.streams) if self.iterations else self.streams

    @property
    def groups(self) -> list[slice]:
        """The places of pre, post and comb (`StreamWeights`) among the linear's results, or of pre alone; each group
        has a scale of its own."""
        ends = [0, self.streams, 2 * self.streams, self.width] if self.iterations else [0, self.streams]
        return [slice(start, stop) for start, stop in pairwise(ends)]


class StreamWeights(NamedTuple):
    """The weights by which a block reads and updates n streams of T tokens: `pre` [n, T] of each stream in its input,
    `post` [n, T] of its output in each stream, `comb` [n, n, T] of stream j in stream k afterwards; post and comb are
    None where streams are only read."""

    pre: Array
    """[n, T]: of each stream in the block's input."""
    post: Array | None
    """[n, T]: of the block's output in each stream; None where streams are only read."""
    comb: Array | None
    """[n, n, T]: of stream j in stream k afterwards; None where streams are only read."""


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def _softmax_of_rows(x: Array) -> Array:
    result = np.exp(x - x.max(axis=1, keepdims=True))
    result /= result.sum(axis=1, keepdims=True)
    return np.asarray(result)


def _sides(rule: StreamRule) -> list[int]:
    """The axes over which comb [n, n, T] is divided by its sums, one division after the other: 0 (columns), then 1 and
    0 in turn."""
    return [0, *(1, 0) * (rule.iterations - 1)]


def stream_weights(u: Array, rule: StreamRule) -> StreamWeights:
    """The weights from the linear's results u [m, T], which are scaled and shifted already; u is not changed."""
    pre, *others = (u[group] for group in rule.groups)
    pre = _sigmoid(pre) + np.float32(rule.epsilon)
    if not others:
        return StreamWeights(pre, None, None)
    comb = _softmax_of_rows(others[1].reshape(rule.streams, rule.streams, -1)) + np.float32(rule.epsilon)
    for axis in _sides(rule):
        comb /= comb.sum(axis=axis, keepdims=True) + np.float32(rule.epsilon)
    return StreamWeights(pre, 2 * _sigmoid(others[0]), comb)


def stream_weights_gradient(u: Array, rule: StreamRule, gradient: StreamWeights) -> Array:
    """The gradient of `stream_weights`' argument u [m, T]. u, rule: as given to `stream_weights`; gradient: that of the
    weights it returned, without post and comb where streams are only read."""
    du = np.empty_like(u)
    (of_pre, *others), epsilon = rule.groups, np.float32(rule.epsilon)
    sigmoid = _sigmoid(u[of_pre])
    du[of_pre] = gradient.pre * sigmoid * (1 - sigmoid)
    if not others:
        return du
    of_post, of_comb = others
    assert gradient.post is not None and gradient.comb is not None
    sigmoid = _sigmoid(u[of_post])
    du[of_post] = 2 * gradient.post * sigmoid * (1 - sigmoid)
    rows = _softmax_of_rows(u[of_comb].reshape(rule.streams, rule.streams, -1))
    comb, divided = rows + epsilon, []
    for axis in _sides(rule):
        total = comb.sum(axis=axis, keepdims=True) + epsilon
        comb = comb / total
        divided.append((axis, comb, total))
    upstream = gradient.comb
    for axis, result, total in reversed(divided):
        upstream = (upstream - (upstream * result).sum(axis=axis, keepdims=True)) / total
    upstream = rows * (upstream - (upstream * rows).sum(axis=1, keepdims=True))
    du[of_comb] = upstream.reshape(-1, u.shape[-1])
    return du
