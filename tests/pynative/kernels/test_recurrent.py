"""Linear attention's operators, in both implementations, against their definitions token by token in float64."""

import numpy as np
import pytest
from mindspore import from_numpy

from parallel_core.attention.recurrence import RecurrenceForm
from pynative import kernels
from tests.support.kernels import Array, assert_close, assert_equals_reference, normal, run_operator, tensor, values

pytestmark = pytest.mark.usefixtures("implementation")

FORMS = {
    "delta": RecurrenceForm(0.5, delta=True, unit=True),
    "state space": RecurrenceForm(),
    "delta of any length": RecurrenceForm(delta=True),
}


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def convolution(x: Array, weight: Array, bias: Array | float = 0.0) -> Array:
    reach = weight.shape[2] - 1
    padded = np.concatenate([np.zeros((reach, *x.shape[1:])), x])
    total = sum(padded[tap : tap + len(x)] * weight[:, 0, tap] for tap in range(reach + 1)) + bias
    return total * _sigmoid(total)


def recurrence(q: Array, k: Array, v: Array, log_decay: Array, rate: Array, form: RecurrenceForm) -> Array:
    """The definition, token by token: state = decay x state + k (rate x new value)^T; the output is scale x
    state^T q."""
    repeats = v.shape[2] // q.shape[2]
    if form.unit:
        q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (np.repeat(x, repeats, axis=2) for x in (q, k))
    state, out = np.zeros((*v.shape[1:3], q.shape[-1], v.shape[-1])), np.empty_like(v)
    for t in range(len(q)):
        state = state * np.exp(log_decay[t])[..., None, None]
        new = v[t] - (np.einsum("bnde,bnd->bne", state, k[t]) if form.delta else 0)
        state = state + np.einsum("bnd,bne->bnde", k[t], rate[t][..., None] * new)
        out[t] = form.scale * np.einsum("bnde,bnd->bne", state, q[t])
    return out


def drawn(tokens: int, keys: int = 2, heads: int = 4, batch: int = 2) -> tuple[Array, ...]:
    """(q, k, v, log decay, rate) for so many tokens, with `keys` heads of keys and `heads` of values."""
    decay = -np.abs(normal(tokens, batch, heads, seed=3))
    rate = _sigmoid(normal(tokens, batch, heads, seed=4)).astype(np.float32)
    q, k = (0.7 * normal(tokens, batch, keys, 3, seed=seed) for seed in (0, 1))
    return q, k, normal(tokens, batch, heads, 2, seed=2), decay, rate


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("tokens", [1, 6])
def test_short_convolution(tokens, biased):
    """The causal convolution over four tokens and the SiLU behind it, with and without bias; zeros stand before the
    first token."""
    inputs = normal(tokens, 2, 3), normal(3, 1, 4, seed=1), normal(3, seed=2)
    assert_equals_reference(
        lambda x, w, b=None: kernels.short_convolution(x, w, b), convolution, inputs if biased else inputs[:2]
    )


@pytest.mark.parametrize("rated", [True, False])
def test_recurrent_gates(rated):
    """(log decay, rate) from their projections: a rate of its own goes through a sigmoid; without one softplus(x +
    bias) is the rate."""

    def expected(x, a_log, bias, rate=None):
        step = np.log1p(np.exp(x + bias))
        return -np.exp(a_log) * step, step if rate is None else _sigmoid(rate)

    inputs = normal(3, 2, 4), normal(4, seed=1), normal(4, seed=2), normal(3, 2, 4, seed=3)
    assert_equals_reference(
        lambda x, a, b, rate=None: kernels.recurrent_gates(x, rate, a, b), expected, inputs if rated else inputs[:3]
    )


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gate(activation):
    """x times activation(z), where z may have heads and width as one axis."""
    factors = {"silu": lambda z: z * _sigmoid(z), "sigmoid": _sigmoid}
    assert_equals_reference(
        lambda x, z: kernels.gate(x, z, activation),
        lambda x, z: x * factors[activation](z).reshape(x.shape),
        (normal(3, 2, 4, 2), normal(3, 2, 8, seed=1)),
    )


def test_add_scaled_heads():
    """y + x times a learned factor for each head."""
    assert_equals_reference(
        kernels.add_scaled_heads,
        lambda y, x, factors: y + x * factors[:, None],
        (normal(3, 2, 4, 2), normal(3, 2, 4, 2, seed=1), normal(4, seed=2)),
    )


def test_grouped_rms_norm():
    """An RMS norm with statistics for each group of features and a weight for each feature."""

    def expected(x, weight):
        grouped = x.reshape(*x.shape[:-1], 2, -1)
        normed = grouped / np.sqrt((grouped**2).mean(-1, keepdims=True) + 1e-5)
        return normed.reshape(x.shape) * weight

    inputs = normal(3, 2, 8), normal(8, seed=1)
    assert_equals_reference(lambda x, w: kernels.grouped_rms_norm(x, w, 2, 1e-5), expected, inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_recurrence(form, tokens):
    """Output and every gradient of `linear_recurrence`, with value heads that share key heads."""
    rule = FORMS[form]
    assert_equals_reference(
        lambda *x: kernels.linear_recurrence(*x, rule), lambda *x: recurrence(*x, rule), drawn(tokens)
    )


@pytest.mark.parametrize("form", FORMS)
def test_chunks_and_segments_are_one_sequence(form):
    """530 tokens, nine chunks in two segments: output and gradients, which reach the first tokens through all of them,
    compared along two directions."""
    rule, inputs = FORMS[form], drawn(530, keys=1, heads=2, batch=1)
    if form == "delta of any length":
        inputs = 0.3 * inputs[0], 0.3 * inputs[1], *inputs[2:]
    (out,), gradients = run_operator(lambda *x: kernels.linear_recurrence(*x, rule), inputs)
    wide = [x.astype(np.float64) for x in inputs]
    assert_close(out, recurrence(*wide, rule), 5e-6)
    start = np.round(8 * normal(*out.shape, seed=1000)) / 8
    for number, gradient in enumerate(gradients):
        for seed in range(2):
            direction = normal(*gradient.shape, seed=50 + seed).astype(np.float64)
            ends = []
            for sign in (1, -1):
                moved = [x + sign * 1e-6 * direction if i == number else x for i, x in enumerate(wide)]
                ends.append((start * recurrence(*moved, rule)).sum())
            expected = (ends[0] - ends[1]) / 2e-6
            assert abs((gradient * direction).sum() - expected) <= 1e-4 * max(
                1.0, np.abs(gradient * direction).sum() / 30
            )


def test_value_heads_of_a_key_head_in_parts():
    """Value heads too wide to be computed together give what key heads repeated for each of them give; the gradients of
    keys and queries add up."""
    rule, (q, k, v, decay, rate) = FORMS["delta"], drawn(20, keys=1, heads=4, batch=1)
    v = normal(20, 1, 4, 200, seed=2)
    (out,), (dq, dk, *others) = run_operator(lambda *x: kernels.linear_recurrence(*x, rule), (q, k, v, decay, rate))
    each = (np.repeat(x, 4, axis=2) for x in (q, k))
    (expected,), (dq_each, dk_each, *expected_others) = run_operator(
        lambda *x: kernels.linear_recurrence(*x, rule), (*each, v, decay, rate)
    )
    pairs = zip(
        (out, dq, dk, *others),
        (expected, *(x.sum(2, keepdims=True) for x in (dq_each, dk_each)), *expected_others),
        strict=True,
    )
    for found, wanted in pairs:
        assert_close(found, wanted, 2e-6)


def test_equal_keys_lose_no_digits():
    """The hardest triangular matrix to invert: all keys equal and no decay, so that its powers reach 1e18."""
    q, k, v, decay, rate = drawn(64, keys=1, heads=1, batch=1)
    k, decay, rate = np.broadcast_to(k[:1], k.shape), np.zeros_like(decay), np.full_like(rate, 0.999)
    rule = FORMS["delta"]
    (out,), _ = run_operator(lambda *x: kernels.linear_recurrence(*x, rule), (q, k, v, decay, rate))
    assert_close(out, recurrence(*(x.astype(np.float64) for x in (q, k, v, decay, rate)), rule), 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_states_continue_texts_of_any_length(form):
    """Texts of 5 and 9 tokens, padded to one batch, then one more token each from the kept states: as if computed at
    once."""
    rule, (q, k, v, decay, rate) = FORMS[form], drawn(10)
    x, weight = normal(10, 2, 3, seed=7), tensor(normal(3, 1, 4, seed=8))
    lengths = np.array([5, 9], np.int32)
    inputs = q, k, v, decay, rate
    next_rows = [np.stack([a[length, text] for text, length in enumerate(lengths)])[None] for a in (*inputs, x)]
    state = from_numpy(np.zeros((2, 4, 3, 2), np.float32))
    _, state = kernels.continued_recurrence(*map(tensor, inputs), rule, state, lengths)
    out, _ = kernels.continued_recurrence(*map(tensor, next_rows[:5]), rule, state, None)
    whole = recurrence(*(a.astype(np.float64) for a in inputs), rule)
    nothing = from_numpy(np.zeros((3, 2, 3), np.float32))
    _, before = kernels.continued_convolution(tensor(x), weight, None, nothing, lengths)
    y, _ = kernels.continued_convolution(tensor(next_rows[5]), weight, None, before, None)
    convolved = convolution(x.astype(np.float64), values(weight))
    for text, length in enumerate(lengths):
        assert_close(values(out)[0, text], whole[length, text], 1e-5)
        assert_close(values(y)[0, text], convolved[length, text], 1e-5)
