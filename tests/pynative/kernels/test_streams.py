"""The operators of hyper-connections, in both implementations, equal their definitions in float64."""

import numpy as np
import pytest

from parallel_core.numerics.hyper_connections import StreamRule
from pynative import kernels
from tests.support.kernels import Array, assert_equals_reference, normal

pytestmark = pytest.mark.usefixtures("implementation")

RULE = StreamRule(3, 4, 1e-2, 1e-5)
TOKENS, WIDTH = (5, 2), 4


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _linear(x: Array, weight: Array) -> Array:
    return x @ weight.T / np.sqrt((x**2).mean(-1, keepdims=True) + RULE.norm_epsilon)


def _collapsed(x: Array, u: Array) -> Array:
    streams = x.reshape(*x.shape[:-1], 3, -1)
    return ((_sigmoid(u) + RULE.epsilon)[..., None] * streams).sum(-2)


def collapse(x: Array, weight: Array, base: Array, scale: Array) -> Array:
    return _collapsed(x, _linear(x, weight) * scale + base)


def read(x: Array, weight: Array, base: Array, scale: Array) -> tuple[Array, Array]:
    """The definition of `read_streams`: (block's input, weights for writing), with the Sinkhorn iterations one by one
    as in the paper."""
    u = _linear(x, weight) * np.repeat(scale, (3, 3, 9)) + base
    comb = u[..., 6:].reshape(*TOKENS, 3, 3)
    comb = np.exp(comb) / np.exp(comb).sum(-1, keepdims=True) + RULE.epsilon
    comb = comb / (comb.sum(-2, keepdims=True) + RULE.epsilon)
    for _ in range(RULE.iterations - 1):
        comb = comb / (comb.sum(-1, keepdims=True) + RULE.epsilon)
        comb = comb / (comb.sum(-2, keepdims=True) + RULE.epsilon)
    weights = np.concatenate((2 * _sigmoid(u[..., 3:6]), comb.reshape(*TOKENS, 9)), -1)
    return _collapsed(x, u[..., :3]), weights


def write(x: Array, y: Array, weights: Array) -> Array:
    streams, comb = x.reshape(*TOKENS, 3, WIDTH), weights[..., 3:].reshape(*TOKENS, 3, 3)
    out = weights[..., :3, None] * y[..., None, :] + np.einsum("sbjk,sbjh->sbkh", comb, streams)
    return out.reshape(x.shape)


STREAMS = normal(*TOKENS, 3 * WIDTH)


def test_repeated_streams_are_equal():
    """`repeat_streams` copies the hidden state into each stream; the streams' gradients are added up."""
    assert_equals_reference(
        lambda x: kernels.repeat_streams(x, 3), lambda x: np.tile(x, (1, 1, 3)), (normal(*TOKENS, WIDTH),)
    )


def test_streams_are_read_by_weights_of_their_own():
    """`read_streams` returns the block's input and the weights by which its output is written back."""
    inputs = STREAMS, normal(15, 3 * WIDTH) / 3, normal(15, seed=1), normal(3, seed=2)
    assert_equals_reference(lambda *given: kernels.read_streams(*given, RULE), read, inputs)


def test_streams_collapse_into_one():
    """`collapse_streams` is the weighted sum of the streams before the last norm."""
    inputs = STREAMS, normal(3, 3 * WIDTH), normal(3, seed=1), normal(1, seed=2)
    assert_equals_reference(lambda *given: kernels.collapse_streams(*given, RULE), collapse, inputs)


def test_streams_are_written():
    """`write_streams` mixes the streams and adds the block's output; columns of the mixing weights say where each
    stream goes."""
    inputs = STREAMS, normal(*TOKENS, WIDTH, seed=1), normal(*TOKENS, 12, seed=2)
    assert_equals_reference(kernels.write_streams, write, inputs)
