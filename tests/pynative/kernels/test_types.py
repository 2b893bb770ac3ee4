"""Every operator in every floating-point type and every stack, against float64: results, and gradients of all inputs.

Inputs and upstream gradients are such that all three types represent them, so a reference is computed once. What is
computed in float32 and rounded once is off by one rounding of each element and by float32's own noise.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from pynative import kernels
from pynative.kernels.block import AttentionRule
from pynative.kernels.dropout import attention_dropout_mask, dropout_mask
from pynative.kernels.ops import vocabulary
from pynative.tape.autograd import backward, leaf, recording, take_gradient
from tests.support import kernels as support
from tests.support.kernel_stacks import ROUNDING, STACKS, selected
from tests.support.kernels import Array, linear, normal, numerical_gradients, run_operator, tensor, values


class Case(NamedTuple):
    """An operator, its definition in float64, and its inputs."""

    operator: Callable
    reference: Callable
    inputs: tuple[Array, ...]


def exact(array: Array) -> Array:
    """The nearest values with 8 significant bits, which all three types represent."""
    return values(tensor(array, mindspore.bfloat16))


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@cache
def _attention_kept() -> Array:
    return np.array([[attention_dropout_mask((7,), b, n, (6, 6), 0.25) for n in range(4)] for b in range(2)])


def _split(qkv: Array) -> tuple[Array, ...]:
    rows = qkv.reshape(6, 2, 2, 4, 3)
    return rows[..., :2, :].reshape(6, 2, 4, 3), rows[..., 2, :], rows[..., 3, :]


def _latent_heads(rows: Array, key: Array) -> tuple[Array, ...]:
    heads = rows.reshape(6, 2, 4, 4)
    return np.concatenate((heads[..., :2], np.repeat(key, 4, axis=2)), -1), heads[..., 2:]


IDS = np.array([[1, 4, 1], [9, 0, 2]], np.int32)
ANGLES = exact(normal(6, 16, seed=3))
CAUSAL = np.triu(np.ones((6, 6), bool), 1)
HEADS = [normal(6, 2, *shape, seed=shape[0]) for shape in ((4, 16), (2, 16), (2, 8))]
X, WIDE, VECTOR = normal(6, 2, 8), normal(6, 2, 16), normal(8, seed=1)
KEY = normal(6, 2, 1, 3)
KEPT = dropout_mask((1,), (6, 2, 8), 0.3)

CASES = {
    "linear": Case(linear, lambda x, w, b: x @ w.T + b, (X, normal(5, 8), normal(5))),
    "layer_norm": Case(
        lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5),
        lambda x, w, b: support.layer_norm(x, w, b, 1e-5),
        (X, VECTOR, normal(8, seed=2)),
    ),
    "layer_norm less one": Case(
        lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5, True),
        lambda x, w, b: support.layer_norm(x, w + 1, b, 1e-5),
        (X, VECTOR, normal(8, seed=2)),
    ),
    "rms_norm": Case(lambda x, w: kernels.rms_norm(x, w, 1e-5), lambda x, w: support.rms_norm(x, w, 1e-5), (X, VECTOR)),
    "gelu": Case(lambda x, b: kernels.bias_activation(x, b, "gelu_tanh"), lambda x, b: _gelu(x + b), (X, VECTOR)),
    "silu": Case(lambda x: kernels.bias_activation(x, None, "silu"), _silu, (X,)),
    "swiglu": Case(
        lambda x: kernels.bias_activation(x, None, "swiglu"), lambda x: _silu(x[..., :8]) * x[..., 8:], (WIDE,)
    ),
    "geglu": Case(
        lambda x: kernels.bias_activation(x, None, "geglu_tanh"), lambda x: _gelu(x[..., :8]) * x[..., 8:], (WIDE,)
    ),
    "swiglu with bias": Case(
        lambda x, b: kernels.bias_activation(x, b, "swiglu"),
        lambda x, b: _silu(x[..., :8] + b[:8]) * (x[..., 8:] + b[8:]),
        (WIDE, normal(16)),
    ),
    "split_qkv": Case(lambda x: kernels.split_qkv(x, 2, 2, 3), _split, (normal(6, 2, 24),)),
    "rotary": Case(
        lambda x: kernels.rotary(x, tensor(ANGLES), tensor(ANGLES[::-1])),
        lambda x: support.rotary(x, ANGLES, ANGLES[::-1], False),
        (HEADS[0],),
    ),
    "rotary of neighbours": Case(
        lambda x: kernels.rotary(x, tensor(ANGLES), tensor(ANGLES[::-1]), True),
        lambda x: support.rotary(x, ANGLES, ANGLES[::-1], True),
        (HEADS[0],),
    ),
    "rotary of neighbours behind others": Case(
        lambda x: kernels.rotary(x, tensor(ANGLES[:, :4]), tensor(ANGLES[::-1, :4]), True, 12),
        lambda x: np.concatenate((x[..., :12], support.rotary(x[..., 12:], ANGLES[:, :4], ANGLES[::-1, :4], True)), -1),
        (HEADS[0],),
    ),
    "split_features": Case(lambda x: kernels.split_features(x, (5, 3)), lambda x: (x[..., :5], x[..., 5:]), (X,)),
    "as_heads": Case(lambda x: kernels.as_heads(x, 2), lambda x: x.reshape(6, 2, 2, 4), (X,)),
    "latent_keys_values": Case(
        lambda rows, key: kernels.latent_keys_values(rows, key, 4, 2), _latent_heads, (WIDE, KEY)
    ),
    "attention": Case(
        lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=0.25)),
        lambda q, k, v: support.attention(q, k, v, 0.25, CAUSAL),
        tuple(HEADS),
    ),
    "attention with dropout": Case(
        lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=0.25, dropout_rate=0.25, dropout_key=(7,))),
        lambda q, k, v: support.attention(q, k, v, 0.25, CAUSAL, _attention_kept()),
        tuple(HEADS),
    ),
    "bias_dropout_add": Case(
        lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.3, (1,)),
        lambda x, b, r: r + (x + b) * KEPT,
        (X, VECTOR, normal(6, 2, 8, seed=5)),
    ),
    "bias": Case(kernels.bias_dropout_add, lambda x, b: x + b, (X, VECTOR)),
    "dropout": Case(lambda x: kernels.dropout(x, 0.3, (1,)), lambda x: x * KEPT, (X,)),
    "scale": Case(lambda x: kernels.scale(x, 0.3), lambda x: np.float64(np.float32(0.3)) * x, (X,)),
    "soft_cap": Case(lambda x: kernels.soft_cap(x, 3.0), lambda x: 3.0 * np.tanh(x / 3.0), (2 * X,)),
    "join_features": Case(
        kernels.join_features,
        lambda x, y: np.concatenate((x, y), axis=-1),
        (X, normal(6, 2, 3, seed=6)),
    ),
    "fork": Case(kernels.fork, lambda x: (x, x), (X,)),
    "embedding": Case(
        lambda w: kernels.embedding(from_numpy(IDS), w, 0), lambda w: np.concatenate((w, 0 * w))[IDS], (normal(5, 8),)
    ),
}
_COMPOSED = {"linear", "gelu", "silu", "geglu", "swiglu with bias", "bias_dropout_add"}
_ROTARY = {"rotary", "rotary of neighbours", "rotary of neighbours behind others"}
_ATTENTION = {"attention", "attention with dropout"}
ROUNDS_BETWEEN = {
    "host": {"gelu", "swiglu with bias", *_ATTENTION},
    "ops": set(),
    "ops frugal": set(),
    "ascend": {*_COMPOSED, "swiglu", *_ROTARY, "latent_keys_values", *_ATTENTION},
    "ascend fused": _COMPOSED,
}
"""Stack -> operators that it composes of several kernels, each of which rounds to the type; checked to two roundings of
the largest element."""


@cache
def expected(name: str) -> tuple[list[Array], list[Array], list[Array]]:
    """(inputs that all types represent, results in float64, gradients in float64) of the case of that name."""
    case = CASES[name]
    inputs = [exact(x) for x in case.inputs]
    results = support.outputs_of(case.reference(*(x.astype(np.float64) for x in inputs)))
    return inputs, list(results), numerical_gradients(case.reference, inputs)


def check(actual: Array, wanted: Array, rounding: float, roundings: int, noise: float) -> None:
    """Check within one rounding of each element, or `roundings` of the largest, and float32's own `noise`."""
    largest = max(0.1, float(np.abs(wanted).max()))
    allowed = rounding * (np.abs(wanted) if roundings == 1 else roundings * largest) + noise * largest
    error = np.abs(actual - wanted)
    assert actual.shape == wanted.shape and np.isfinite(actual).all()
    assert (error <= allowed).all(), f"off by {(error / largest).max() / rounding:.2f} roundings of the largest element"


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_in_a_type(name, stack, dtype):
    """Results and gradients within rounding of float64, and of the inputs' type, which `run_operator` checks."""
    inputs, wanted_results, wanted_gradients = expected(name)
    with selected(stack):
        results, gradients = run_operator(CASES[name].operator, inputs, dtype)
    roundings = 2 if name in ROUNDS_BETWEEN[stack] else 1
    for actual, wanted in zip(results, wanted_results, strict=True):
        check(actual, wanted, ROUNDING[dtype], roundings, 3e-6)
    for actual, wanted in zip(gradients, wanted_gradients, strict=True):
        check(actual, wanted, ROUNDING[dtype], roundings, 2e-5)


@pytest.mark.parametrize("target", ROUNDING, ids=str)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("stack", ["host", "ops", "ascend"])
def test_a_cast_and_its_gradient(stack, dtype, target):
    """A cast rounds once, its gradient back once; a cast to the tensor's own type returns it unchanged."""
    x, dy = normal(6, 2, 8), exact(normal(6, 2, 8, seed=1))
    with selected(stack), recording():
        start = leaf(tensor(x, dtype))
        given = start * 1.0
        result = kernels.cast(given, target)
        backward([result], [tensor(dy, target)])
    assert result.dtype == target and (result is given) == (dtype == target)
    np.testing.assert_array_equal(values(result), values(tensor(values(given), target)))
    gradient = take_gradient(start)
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(values(gradient), dy)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("stack", STACKS)
def test_a_scale_too_small_for_the_type(stack, dtype):
    """`scale` by 1e-9, which is 0 in float16: the factor is kept in float32 whatever the tensor's type."""
    x = np.full((2, 8), 2.0**15, np.float32)
    with selected(stack):
        result = values(kernels.scale(tensor(x, dtype), 1e-9))
    np.testing.assert_allclose(result, 2.0**15 * 1e-9, rtol=1e-2)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("stack", ["host", "ops", "ascend"])
def test_cross_entropy_in_a_type(stack, dtype, monkeypatch):
    """Logits cut over two ranks, in blocks of rows: float32 losses; the gradient is of the logits' type,
    rounded once."""
    monkeypatch.setattr(vocabulary, "BLOCK_ENTRIES", 2 * 15)
    logits, target = exact(3 * normal(2, 4, 30)), np.arange(8, dtype=np.int32).reshape(2, 4) * 4
    dloss, ids = normal(2, 4, seed=2), from_numpy(target)
    with selected(stack):
        parts = [tensor(logits[..., :15], dtype), tensor(logits[..., 15:], dtype)]
        own = [kernels.softmax_statistics(part, ids, 15 * rank) for rank, part in enumerate(parts)]
        maximum = tensor(np.maximum(*(values(statistics[0]) for statistics in own)))
        addends = [kernels.cross_entropy_addends(most, maximum, total, at) for most, total, at in own]
        added = tensor(sum(map(values, addends)))
        loss = kernels.cross_entropy_loss(added, maximum)
        gradients = [
            kernels.cross_entropy_gradient(part, maximum, added, ids, 15 * rank, tensor(dloss))
            for rank, part in enumerate(parts)
        ]
    assert {x.dtype for x in (*own[0], *own[1], loss)} == {mindspore.float32}
    assert {gradient.dtype for gradient in gradients} == {dtype}
    probabilities, hit = support.softmax(logits.astype(np.float64)), np.eye(30)[target]
    support.assert_close(values(loss), -np.log((probabilities * hit).sum(-1)), 1e-6)
    wanted = (probabilities - hit) * dloss[..., None]
    check(np.concatenate([values(each) for each in gradients], -1), wanted, ROUNDING[dtype], 1, 1e-6)
