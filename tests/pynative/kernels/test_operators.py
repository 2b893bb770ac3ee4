"""Each operator, in both implementations, equals its float64 definition, forward and every gradient."""

from math import erf, pi, sqrt

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from parallel_core.numerics.activations import GATES, adjusted, gated_unit
from pynative import kernels
from pynative.kernels.block import AttentionRule
from pynative.kernels.dropout import attention_dropout_mask, dropout_mask
from tests.support import kernels as support
from tests.support.kernels import assert_equals_reference, linear, normal, tensor

pytestmark = pytest.mark.usefixtures("implementation")

EPSILON = 1e-5


@pytest.mark.parametrize("shape", [(3, 2, 5), (1, 1, 1), (1, 7), (2, 1, 3, 4)])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_layer_norm(shape, zero_centered):
    """`layer_norm`, with a weight and with 1 + weight, equals its definition, forward and every gradient."""
    assert_equals_reference(
        lambda x, w, b: kernels.layer_norm(x, w, b, EPSILON, zero_centered),
        lambda x, w, b: support.layer_norm(x, w + zero_centered, b, EPSILON),
        (normal(*shape), normal(shape[-1], seed=1), normal(shape[-1], seed=2)),
    )


@pytest.mark.parametrize("shape", [(3, 2, 5), (1, 1, 1), (1, 7), (2, 1, 3, 4)])
@pytest.mark.parametrize("zero_centered", [False, True])
def test_rms_norm(shape, zero_centered):
    """`rms_norm`, with a weight and with 1 + weight, equals its definition, forward and every gradient."""
    assert_equals_reference(
        lambda x, w: kernels.rms_norm(x, w, EPSILON, zero_centered),
        lambda x, w: support.rms_norm(x, w + zero_centered, EPSILON),
        (normal(*shape), normal(shape[-1], seed=1)),
    )


@pytest.mark.parametrize("shape", [(3, 2, 5), (1, 1, 1), (7, 3)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear(shape, biased):
    """`linear` with and without a bias equals x @ w.T + b, forward and every gradient."""
    inputs = (normal(*shape), normal(4, shape[-1], seed=1), normal(4, seed=2))
    assert_equals_reference(
        linear,
        lambda x, w, *b: x @ w.T + sum(b),
        inputs if biased else inputs[:2],
    )


def _silu(x):
    return x / (1 + np.exp(-x))


ACTIVATIONS = {
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": _silu,
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
}
ACTIVATIONS |= {
    name: lambda x, gate=ACTIVATIONS[gate]: gate(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]
    for name, gate in GATES.items()
}
ACTIVATIONS[adjusted("swiglu", 0.9, 1.0, 0.7)] = lambda x: (
    _silu(np.minimum(0.7 * x[..., : x.shape[-1] // 2], 0.9)) * (np.clip(x[..., x.shape[-1] // 2 :], -0.9, 0.9) + 1)
)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(3, 2, 6), (1, 2)])
@pytest.mark.parametrize("biased", [True, False])
def test_activation(name, shape, biased):
    """`bias_activation` by each of ACTIVATIONS, with and without a bias, equals its definition and gradients."""
    inputs = (2 * normal(*shape), normal(shape[-1], seed=1))
    assert_equals_reference(
        lambda x, b=None: kernels.bias_activation(x, b, name),
        lambda x, b=0.0: ACTIVATIONS[name](x + b),
        inputs if biased else inputs[:1],
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_stay_finite_far_out(name):
    """Result and gradient are finite for large negative inputs, where exp overflows."""
    x = np.array([[-1e4, -200, -90, 0, 90, 1e4]], np.float32)
    outputs, gradients = support.run_operator(lambda x: kernels.bias_activation(x, None, name), (x,))
    with np.errstate(over="ignore"):  # exp overflows to infinity, and x / infinity is 0, which is right
        expected = ACTIVATIONS[name](x.astype(np.float64))
    support.assert_close(outputs[0], expected, 1e-6)
    assert np.isfinite(gradients[0]).all()


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.float16, mindspore.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_nan_stays_one(name, dtype):
    """A NaN of either sign, anywhere in a row wider than a CPU's vectors, comes out as NaN; a relu made with a
    comparison would give 0."""
    x = normal(2, 70)
    x[0, 3], x[0, 68], x[1, 40] = np.nan, -np.nan, np.nan
    expected = np.isnan(x[:, :35] + x[:, 35:]) if gated_unit(name) else np.isnan(x)
    result = support.values(kernels.bias_activation(tensor(x, dtype), None, name))
    np.testing.assert_array_equal(np.isnan(result), expected)


@pytest.mark.parametrize(("groups", "heads_per_group"), [(2, 1), (2, 3), (1, 4)])
def test_split_qkv(groups, heads_per_group):
    """[s, b, groups x (queries, key, value)] is split into q, k and v: in each group its query heads come first, then
    its key head, its value head."""

    def reference(qkv):
        grouped = qkv.reshape(3, 2, groups, heads_per_group + 2, 5)
        q = np.concatenate([grouped[:, :, g, :heads_per_group] for g in range(groups)], axis=2)
        return q, grouped[:, :, :, heads_per_group], grouped[:, :, :, heads_per_group + 1]

    qkv = normal(3, 2, groups * (heads_per_group + 2) * 5)
    assert_equals_reference(lambda x: kernels.split_qkv(x, groups, heads_per_group, 5), reference, (qkv,))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [6, 4])
@pytest.mark.parametrize("per_sample", [False, True])
def test_rotary(interleaved, rotated, per_sample):
    """Rotary embedding of a whole or a part of each head, with angles that differ between the two halves, which nothing
    may assume equal."""
    shape = (3, 2, rotated) if per_sample else (3, rotated)
    cos, sin = normal(*shape, seed=1), normal(*shape, seed=2)
    assert_equals_reference(
        lambda x: kernels.rotary(x, tensor(cos), tensor(sin), interleaved),
        lambda x: support.rotary(x, cos, sin, interleaved),
        (normal(3, 2, 2, 6),),
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [7, 9])
def test_rotary_from_an_element_on(interleaved, size):
    """Rotation of the last elements of each head, as in latent attention; those before stay."""
    cos, sin = normal(3, 4, seed=1), normal(3, 4, seed=2)

    def reference(x):
        return np.concatenate((x[..., :3], support.rotary(x[..., 3:], cos, sin, interleaved)), -1)

    assert_equals_reference(
        lambda x: kernels.rotary(x, tensor(cos), tensor(sin), interleaved, start=3), reference, (normal(3, 2, 2, size),)
    )


def test_heads_of_latent_attention():
    """`latent_keys_values`, `split_features`, `as_heads`: keys end in one rotary key that all heads share, whose
    gradient is the sum over heads."""

    def reference(rows, key):
        heads = rows.reshape(3, 2, 4, 7)
        return np.concatenate((heads[..., :5], np.repeat(key, 4, axis=2)), -1), heads[..., 5:]

    inputs = (normal(3, 2, 28), normal(3, 2, 1, 3, seed=1))
    assert_equals_reference(lambda rows, key: kernels.latent_keys_values(rows, key, 4, 2), reference, inputs)
    split = (lambda x: kernels.split_features(x, (5, 2)), lambda x: (x[..., :5], x[..., 5:]))
    assert_equals_reference(*split, (normal(3, 2, 7),))
    assert_equals_reference(lambda x: kernels.as_heads(x, 3), lambda x: x.reshape(3, 2, 3, 2), (normal(3, 2, 6),))


def _heads(sequence, batch, heads, groups):
    """[q, k, v]: queries [s, b, n, d], keys [s, b, g, d], values of another width."""
    shapes = ((sequence, batch, *shape) for shape in ((heads, 3), (groups, 3), (groups, 2)))
    return tuple(normal(*shape, seed=i) for i, shape in enumerate(shapes))


@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sequence", [5, 1])
def test_attention(heads, groups, causal, sequence):
    """Forward and gradients for grouped heads. Sequences of 1 come last: after a softmax gradient of size 1,
    MindSpore's CPU gets all later ones wrong."""
    hidden = np.triu(np.ones((sequence, sequence), bool), 1) & causal
    assert_equals_reference(
        lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=0.6, causal=causal)),
        lambda q, k, v: support.attention(q, k, v, 0.6, hidden),
        _heads(sequence, 2, heads, groups),
    )


@pytest.mark.parametrize("batches", [1, 2])
def test_attention_mask_with_a_row_that_sees_nothing(batches):
    """A row whose keys are all masked attends evenly to all, and masked scores get no gradient even there."""
    hidden = np.random.default_rng(0).random((batches, 1, 5, 5)) < 0.4
    hidden[0, 0, 2] = True
    assert_equals_reference(
        lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=0.6, mask=from_numpy(hidden))),
        lambda q, k, v: support.attention(q, k, v, 0.6, hidden),
        _heads(5, 2, 4, 2),
    )


@pytest.mark.parametrize("masked", [False, True])
def test_attention_dropout(masked):
    """Attention with dropout equals the definition with `attention_dropout_mask` from the head offset on."""
    hidden = np.triu(np.ones((2, 1, 5, 5), bool), 1)
    kept = np.array([[attention_dropout_mask((9, 4), b, 7 + n, (5, 5), 0.3) for n in range(4)] for b in range(2)])
    mask = from_numpy(hidden) if masked else None
    assert_equals_reference(
        lambda q, k, v: kernels.attention(
            q, k, v, AttentionRule(scale=0.6, mask=mask, dropout_rate=0.3, dropout_key=(9, 4), head_offset=7)
        ),
        lambda q, k, v: support.attention(q, k, v, 0.6, hidden, kept),
        _heads(5, 2, 4, 2),
    )


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("biased", [True, False])
def test_bias_dropout_add(rate, biased):
    """`bias_dropout_add` equals r + (x + b) times the key's mask, with and without bias, and at rate 0."""
    kept = dropout_mask((5,), (3, 2, 4), rate)
    inputs = (normal(3, 2, 4), normal(3, 2, 4, seed=1), normal(4, seed=2))
    assert_equals_reference(
        lambda x, r, b=None: kernels.bias_dropout_add(x, b, r, rate, (5,)),
        lambda x, r, b=0.0: r + (x + b) * kept,
        inputs if biased else inputs[:2],
    )


def test_dropout():
    """`dropout` equals x times the mask of its key and rate, forward and gradient."""
    kept = dropout_mask((5, 6), (3, 2, 4), 0.25)
    assert_equals_reference(lambda x: kernels.dropout(x, 0.25, (5, 6)), lambda x: x * kept, (normal(3, 2, 4),))


def test_dropout_of_a_piece_of_the_sequence():
    """Forward and backward of a rank's rows (positions 7, 8, 2) use those rows of the whole sequence's mask."""
    kept = dropout_mask((5,), (9, 2, 4), 0.5)[[7, 8, 2]]
    rows = (range(7, 9), range(2, 3))
    x, residual, bias = normal(3, 2, 4), normal(3, 2, 4, seed=1), normal(4, seed=2)
    assert_equals_reference(
        lambda x, r, b: kernels.bias_dropout_add(x, b, r, 0.5, (5,), rows),
        lambda x, r, b: r + (x + b) * kept,
        (x, residual, bias),
    )
    assert_equals_reference(lambda x: kernels.dropout(x, 0.5, (5,), rows), lambda x: x * kept, (x,))


def test_bias_alone():
    """`bias_dropout_add` without a residual or a rate equals x + b, forward and every gradient."""
    assert_equals_reference(kernels.bias_dropout_add, lambda x, b: x + b, (normal(3, 2, 4), normal(4)))


@pytest.mark.parametrize(("axis", "index"), [(0, 0), (0, 1), (-1, 1)])
def test_chunk(axis, index):
    """`chunk` returns a contiguous copy of one of two parts, so writing to it does not reach the whole, and it does not
    keep the whole in memory."""
    x = from_numpy(normal(4, 3, 6))
    part = kernels.chunk(x, axis, index, 2)
    np.testing.assert_array_equal(part.asnumpy(), np.split(x.asnumpy(), 2, axis)[index])
    assert part.is_contiguous() and not np.shares_memory(part.asnumpy(), x.asnumpy())
    assert part.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("ids", [[[3, 4, 3, 9, 2], [8, 3, 0, 4, 7]], [[0]], [[50, 60]]])
def test_embedding(ids):
    """Gradients of repeated ids add up; ids of other ranks' rows, below and above, give zeros and no gradient."""
    first_id, ids = 3, np.array(ids, np.int32)

    def reference(weight):
        padded = np.concatenate((np.zeros((3, 4)), weight, np.zeros((60, 4))))
        return padded[ids]

    assert_equals_reference(lambda w: kernels.embedding(from_numpy(ids), w, first_id), reference, (normal(5, 4),))


@pytest.mark.parametrize("mask", [None, np.zeros((3, 2)), np.array([[1, 0], [1, 1], [0, 1]])])
def test_masked_mean(mask):
    """The mean over tokens whose mask is 1; zero, not NaN, where none is; for masks of any type."""
    given = None if mask is None else from_numpy(mask.astype(np.int32))

    def reference(losses):
        weights = np.ones((3, 2)) if mask is None else mask
        return np.sum(losses * weights) / max(np.sum(weights), 1)

    assert_equals_reference(lambda losses: kernels.masked_mean(losses, given), reference, (normal(3, 2),))


@pytest.mark.parametrize("shape", [(1,), (3, 4), (0, 4), (2, 0)])
def test_scale(shape):
    """Forward and gradient, also of an empty tensor: the adapter of an expert without a token."""
    assert_equals_reference(lambda x: kernels.scale(x, 0.3), lambda x: x * 0.3, (normal(*shape),))


def test_fork_adds_the_gradients_of_both_ways():
    """`fork` returns its input twice and adds both gradients."""

    def both(x):
        one, other = kernels.fork(x)
        return kernels.bias_activation(one, None, "silu") * other

    assert_equals_reference(both, lambda x: x / (1 + np.exp(-x)) * x, (normal(5, 3, 8),))


def test_joined_features_part_again():
    """`join_features` concatenates tensors of any widths; each gets its own part of the gradient."""
    for widths in ((4, 4), (1, 7)):
        x, y = (normal(3, 2, width, seed=width) for width in widths)
        assert_equals_reference(kernels.join_features, lambda *sides: np.concatenate(sides, axis=-1), (x, y))


def test_sequence_first():
    """`sequence_first` turns ids, labels and masks [b, s] into [s, b], whatever their type."""
    for dtype in (np.int32, np.float32, np.bool_):
        rows = (normal(2, 5) > 0).astype(dtype)
        np.testing.assert_array_equal(kernels.sequence_first(from_numpy(rows)).asnumpy(), rows.T)
