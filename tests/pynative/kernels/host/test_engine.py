"""The interface of primitives ("engine") beneath the host operators: its products, and that operators need nothing else
of it."""

from threading import Thread

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from pynative import kernels
from pynative.dtypes import BFLOAT16
from pynative.kernels.block import AttentionRule
from pynative.kernels.host import activation, linear, norm, residual, vocabulary
from pynative.kernels.host.attention import backward, forward, heads
from pynative.kernels.host.engine import ENGINE, Engine
from pynative.kernels.host.engine.numpy_engine import NumpyEngine
from pynative.memory.rounding import widened
from pynative.tensor_parallel import vocab_parallel_cross_entropy
from tests.support import kernels as reference
from tests.support.kernels import assert_close, normal, run_operator

ENGINES: dict[Engine, str] = {NumpyEngine(): "numpy", ENGINE: "this process's"}

TYPES = {np.dtype(np.float32): 1e-6, np.dtype(np.float16): 2.0**-10, BFLOAT16: 2.0**-7}


def typed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array.astype(dtype)


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINES.get)
@pytest.mark.parametrize("out_dtype", ["own", "float32"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_any_strides(engine, dtype, out_dtype, accumulate, biased):
    """`matmul` of transposed operands, operands and results with gaps, into float32 or 16 bits, added or not, with bias
    or not, equals numpy."""
    left, right = typed(normal(9, 40), dtype).T, typed(normal(9, 14, seed=1), dtype)[:, ::2]
    bias = typed(normal(7, seed=2), dtype) if biased else None
    out = typed(normal(40, 8, seed=3), dtype if out_dtype == "own" else np.dtype(np.float32))[:, :7]
    expected = widened(left).astype(np.float64) @ widened(right)
    expected = expected + (widened(bias) if biased else 0) + (widened(out) if accumulate else 0)
    engine.matmul(left, right, out, bias, accumulate)
    assert_close(widened(out), expected, TYPES[dtype] * (4 if accumulate and biased else 1))


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINES.get)
@pytest.mark.parametrize("columns", [1, 7])
def test_a_prepared_product_is_of_what_its_arrays_hold(engine, columns):
    """`prepared_matmul` multiplies what its arrays hold at each call, twice, on another thread than the one that
    prepared it, and writes no further."""
    left, right, out = (
        np.empty((40, 9), np.float32),
        np.empty((9, columns), np.float32),
        np.zeros((41, columns), np.float32),
    )
    multiply = engine.prepared_matmul(left, right, out[1:])
    for seed in range(2):
        left[:], right[:] = normal(40, 9, seed=seed), normal(9, columns, seed=seed + 2)
        thread = Thread(target=multiply)
        thread.start()
        thread.join()
        assert_close(out[1:], left.astype(np.float64) @ right, 1e-5)
        assert not out[0].any()


@pytest.mark.parametrize("engine", ENGINES, ids=ENGINES.get)
def test_a_product_computes_in_float32_and_rounds_once(engine):
    """The 16-bit product 2048 + 1 - 2048 is 1: its partial sums are not rounded to 16 bits."""
    left, right = np.array([[2048, 1, -2048]], np.float16), np.ones((3, 1), np.float16)
    out = np.zeros((1, 1), np.float16)
    engine.matmul(left, right, out)
    assert out[0, 0] == 1


class PlainEngine:
    """Another engine: each primitive by its definition, in float64, on float32 arrays. `calls`: names of the primitives
    used."""

    def __init__(self) -> None:
        self.calls: set[str] = set()

    def matmul(self, left, right, out, bias=None, accumulate=False):
        self.calls.add("matmul")
        product = left.astype(np.float64) @ right + (0 if bias is None else bias)
        out[...] = product + out if accumulate else product

    def prepared_matmul(self, left, right, out):
        return lambda: self.matmul(left, right, out)

    def add(self, x, bias, mask, residual, out):
        self.calls.add("add")
        biased = x.astype(np.float64) + (0 if bias is None else bias)
        out[...] = biased * (1 if mask is None else mask) + (0 if residual is None else residual)

    def logit_statistics(self, x, maximum, total):
        self.calls.add("logit_statistics")
        maximum[...] = x.max(1)
        total[...] = np.exp(x.astype(np.float64) - x.max(1, keepdims=True)).sum(1)

    def weighted_exponentials(self, x, maximum, weight, out):
        self.calls.add("weighted_exponentials")
        out[...] = np.exp(x.astype(np.float64) - maximum[:, None]) * weight[:, None]

    def sum_rows(self, x, out):
        self.calls.add("sum_rows")
        out[...] = x.sum(0, dtype=np.float64)

    def norm(self, x, scale, shift, epsilon, out, mean, inverse):
        self.calls.add("norm")
        centred = x.astype(np.float64)
        if mean is not None:
            mean[...] = centred.mean(1)
            centred = centred - centred.mean(1, keepdims=True)
        inverse[...] = 1 / np.sqrt((centred**2).mean(1) + epsilon)
        out[...] = centred * inverse[:, None] * scale + (0 if shift is None else shift)

    def norm_gradient(self, dy, x, scale, mean, inverse, dx, scale_gradient, shift_gradient):
        self.calls.add("norm_gradient")
        normalized = (x.astype(np.float64) - (0 if mean is None else mean[:, None])) * inverse[:, None]
        share = dy * scale
        centre = 0 if mean is None else share.mean(1, keepdims=True)
        dx[...] = inverse[:, None] * (share - centre - normalized * (share * normalized).mean(1, keepdims=True))
        scale_gradient[...] = (dy * normalized).sum(0)
        if shift_gradient is not None:
            shift_gradient[...] = dy.sum(0)

    def activation(self, name, x, bias, out):
        self.calls.add("activation")
        out[...] = np.maximum(x + (0 if bias is None else bias), 0)

    def activation_gradient(self, name, x, bias, dy, dx, bias_gradient):
        self.calls.add("activation_gradient")
        dx[...] = dy * (x + (0 if bias is None else bias) > 0)
        if bias_gradient is not None:
            bias_gradient[...] = dx.sum(0)

    def product_type(self, dtype):
        return dtype

    def score_exponentials(
        self, keys, queries, out, scale, limits=None, maximum=None, inverse_sum=None, cap=None, bias=None
    ):
        self.calls.add("score_exponentials")
        scores = scale * (keys.astype(np.float64) @ queries.swapaxes(1, 2))
        scores = (scores if cap is None else cap * np.tanh(scores / cap)) + (0 if bias is None else bias)
        scores = np.minimum(scores, np.inf if limits is None else limits) - (0 if maximum is None else maximum)
        out[...] = np.exp(scores) * (1 if inverse_sum is None else inverse_sum)

    def score_gradient(self, values, dout, probabilities, delta, out, kept=None, kept_scale=1.0, slope=None):
        self.calls.add("score_gradient")
        gradient = values.astype(np.float64) @ dout.swapaxes(1, 2) * (1 if kept is None else kept_scale * kept)
        out[...] = probabilities * (gradient - delta) * (1 if slope is None else slope)

    def soft_cap_slope(self, keys, queries, out, scale):
        self.calls.add("soft_cap_slope")
        out[...] = 1 - np.tanh(scale * (keys.astype(np.float64) @ queries.swapaxes(1, 2))) ** 2


def cross_entropy_of(logits, target):
    """The vocabulary-parallel cross entropy on one rank."""
    return vocab_parallel_cross_entropy(logits, target, OneRank())


class OneRank:
    """A process group of one rank."""

    rank = 0

    def all_reduce(self, x, op="sum"):
        return x


IDS = from_numpy(np.array([[1, 7]] * 6, np.int32))
HEADS = [normal(7, 2, n, 4, seed=n) for n in (4, 2, 2)]
X, VECTOR = normal(6, 2, 8), normal(8, seed=1)
OPERATORS = {
    "linear": (reference.linear, (X, normal(5, 8), normal(5)), {"matmul", "sum_rows"}),
    "layer_norm": (lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), (X, VECTOR, VECTOR), {"norm", "norm_gradient"}),
    "rms_norm": (lambda x, w: kernels.rms_norm(x, w, 1e-5), (X, VECTOR), {"norm", "norm_gradient"}),
    "activation": (
        lambda x, b: kernels.bias_activation(x, b, "relu"), (X, VECTOR), {"activation", "activation_gradient"},
    ),
    "attention": (
        lambda q, k, v: kernels.attention(q, k, v, AttentionRule(scale=0.5)), HEADS,
        {"matmul", "score_exponentials", "score_gradient"},
    ),
    "bias_dropout_add": (lambda x, b: kernels.bias_dropout_add(x, b, x, 0.3, (1,)), (X, VECTOR), {"add", "sum_rows"}),
    "cross_entropy": (
        lambda x: cross_entropy_of(x, IDS), (X,), {"logit_statistics", "weighted_exponentials"},
    ),
}  # fmt: skip
"""Name -> (operator, inputs, names of the primitives that it calls)."""


@pytest.mark.parametrize("name", OPERATORS)
def test_another_engine_can_serve_the_operators(name, monkeypatch):
    """With PlainEngine, which has the interface's methods and no more, each operator calls the primitives listed and
    gives the same results and gradients."""
    function, inputs, primitives = OPERATORS[name]
    expected = run_operator(function, inputs)
    engine = PlainEngine()
    for module in (activation, heads, forward, backward, linear, norm, residual, vocabulary):
        monkeypatch.setattr(module, "ENGINE", engine)
    given = run_operator(function, inputs)
    assert engine.calls == primitives
    for ours, theirs in zip(given[0] + given[1], expected[0] + expected[1], strict=True):
        assert_close(ours, theirs, 1e-6)


def test_sixteen_bits_are_not_widened_as_a_whole(monkeypatch):
    """The engine gets arrays of the tensor's own 16-bit type, not float32 copies of them."""
    seen = set()

    class Watching(PlainEngine):
        def activation(self, name, x, bias, out):
            seen.update((x.dtype, out.dtype))
            ENGINE.activation(name, x, bias, out)

    monkeypatch.setattr(activation, "ENGINE", Watching())
    kernels.bias_activation(reference.tensor(X, mindspore.bfloat16), None, "gelu_tanh")
    assert seen == {BFLOAT16}
