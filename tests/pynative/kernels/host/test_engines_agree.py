"""Each primitive of this process's engine computes what numpy's engine does, in every type, with bias and without."""

import numpy as np
import pytest

from pynative.dtypes import BFLOAT16
from pynative.kernels.host.engine import ENGINE, onednn
from pynative.kernels.host.engine.interface import AdamwStep
from pynative.kernels.host.engine.numpy_engine import NumpyEngine
from pynative.memory.rounding import widened
from pynative.onednn import primitives
from pynative.onednn.library import Layout, Type
from tests.support.kernels import normal

NUMPY = NumpyEngine()
FLOAT32 = np.dtype(np.float32)
TYPES = {FLOAT32: 3e-6, np.dtype(np.float16): 2e-3, BFLOAT16: 1.6e-2}
"""Type -> largest difference, relative to the largest entry: a few roundings of the type."""
ROWS = 37


@pytest.fixture(autouse=True, params=["this CPU", "a CPU without 16-bit arithmetic"])
def cpu(request, monkeypatch) -> str:
    """Run the test with this CPU's own instructions, then with oneDNN's float32 primitives alone, as on a CPU without
    16-bit arithmetic."""

    def float32_only(make):
        def made(*arguments):
            kinds = {argument.kind for argument in arguments if isinstance(argument, Layout)}
            return None if kinds - {Type.FLOAT32} else make(*arguments)

        return made

    if request.param != "this CPU":
        for name in ("product", "norm", "norm_gradient", "eltwise", "eltwise_gradient", "binary", "reorder"):
            monkeypatch.setattr(primitives, name, float32_only(getattr(primitives, name)))
        monkeypatch.setattr(onednn, "BFLOAT16_PRODUCTS", False)
    return request.param


def typed(dtype: np.dtype, *shape: int, seed: int = 0) -> np.ndarray:
    return normal(*shape, seed=seed).astype(dtype)


def assert_equal(ours: np.ndarray | None, numpys: np.ndarray | None, tolerance: float) -> None:
    if numpys is None or ours is None:
        assert ours is numpys
        return
    ours, numpys = widened(ours), widened(numpys)
    assert np.abs(ours - numpys).max() <= tolerance * np.abs(numpys).max()


def norms(engine, dtype: np.dtype, size: int, centred: bool, shifted: bool) -> list[np.ndarray | None]:
    """Results of a norm's two primitives, forward and gradient; None for those that this norm does not have."""
    x, dy, scale, shift = typed(dtype, ROWS, size), typed(dtype, ROWS, size, seed=1), normal(size), normal(size, seed=2)
    x += 3  # rows with a mean, which layer norm subtracts and RMS norm does not
    out, dx = np.empty_like(x), np.empty_like(x)
    mean, inverse = np.empty(ROWS, FLOAT32) if centred else None, np.empty(ROWS, FLOAT32)
    scale_gradient, shift_gradient = np.empty(size, FLOAT32), np.empty(size, FLOAT32) if shifted else None
    engine.norm(x, scale, shift if shifted else None, 1e-5, out, mean, inverse)
    engine.norm_gradient(dy, x, scale, mean, inverse, dx, scale_gradient, shift_gradient)
    return [out, mean, inverse, dx, scale_gradient, shift_gradient]


@pytest.mark.parametrize("size", [8, 96, 515])
@pytest.mark.parametrize(("centred", "shifted"), [(True, True), (False, False)], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_norms(dtype, centred, shifted, size):
    """LayerNorm and RMSNorm of the process's engine equal numpy's: outputs, statistics and gradients."""
    for ours, numpys in zip(*(norms(e, dtype, size, centred, shifted) for e in (ENGINE, NUMPY)), strict=True):
        assert_equal(ours, numpys, TYPES[dtype] * 4)


def activations(engine, name: str, dtype: np.dtype, biased: bool) -> list[np.ndarray | None]:
    """Results of an activation's two primitives, forward and gradient; None for those without a bias."""
    features = 48
    x, bias = typed(dtype, ROWS, features), typed(dtype, features, seed=1) if biased else None
    shape = (ROWS, features // 2 if name == "swiglu" else features)
    dy, out, dx = typed(dtype, *shape, seed=2), np.empty(shape, dtype), np.empty_like(x)
    bias_gradient = np.empty(features, FLOAT32) if biased else None
    engine.activation(name, x.copy(), bias, out)
    engine.activation_gradient(name, x.copy(), bias, dy, dx, bias_gradient)
    return [out, dx, bias_gradient]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf", "silu", "relu", "squared_relu", "swiglu"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_activations(dtype, name, biased):
    """Each activation of the process's engine equals numpy's, with bias and without: output and gradients."""
    for ours, numpys in zip(*(activations(e, name, dtype, biased) for e in (ENGINE, NUMPY)), strict=True):
        assert_equal(ours, numpys, TYPES[dtype] * 2)


def score_tiles(engine, dtype: np.dtype, heads: int, keys: int, queries: int, size: int) -> list[np.ndarray]:
    """Results of the primitives of attention's scores with each of their options, and of the products of a tile."""
    # every second head: strides are those of one query head of each group
    k, q, v, dout = (typed(dtype, n, 2 * heads, size, seed=i)[:, ::2].transpose(1, 0, 2)
                     for i, n in enumerate((keys, queries, keys, queries)))  # fmt: skip
    maximum, delta = normal(heads, 1, queries), normal(heads, 1, queries, seed=1)
    inverse = np.abs(normal(heads, 1, queries, seed=2))
    limits = np.where(normal(1, keys, queries) > 0, np.float32(-10000), np.float32(np.inf))
    kept = (normal(heads, keys, queries) > 0).astype(dtype)
    results = [np.empty((heads, keys, queries), dtype) for _ in range(6)]
    engine.score_exponentials(k, q, results[0], 0.3)
    engine.score_exponentials(k, q, results[1], 0.3, limits)
    engine.score_exponentials(k, q, results[2], 0.3, None, maximum, inverse)
    engine.score_exponentials(k, q, results[3], 0.3, limits, maximum, inverse)
    engine.score_gradient(v, dout, kept, delta, results[4])
    engine.score_gradient(v, dout, results[0], delta, results[5], kept, 1.25)
    sums, values = np.zeros((heads, 1, queries), FLOAT32), np.zeros((heads, queries, size), FLOAT32)
    gradient = np.zeros((heads, keys + 3, size), FLOAT32)
    engine.matmul(np.ones((1, 1, keys), dtype), results[2], sums)
    engine.matmul(results[2].transpose(0, 2, 1), v, values, accumulate=True)
    engine.matmul(results[4], dout, gradient[:, 1 : keys + 1], accumulate=True)
    return [*results, sums, values, gradient]


@pytest.mark.parametrize("shape", [(4, 64, 128, 16), (1, 37, 33, 5), (3, 1, 1, 4), (2, 1, 17, 3), (5, 16, 1, 64)])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
def test_tiles_of_scores(dtype, shape):
    """Scores of a tile, also of a single key or query: matrices of one row with gaps between them once gave a wrong
    product."""
    for ours, numpys in zip(*(score_tiles(e, dtype, *shape) for e in (ENGINE, NUMPY)), strict=True):
        assert_equal(ours, numpys, TYPES[dtype] * 2)


@pytest.mark.parametrize("out_dtype", ["own", "float32"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_products(dtype, accumulate, out_dtype):
    """`matmul` of the process's engine equals numpy's, with bias or accumulated, in its own type or float32."""
    left, right, bias = typed(dtype, ROWS, 24), typed(dtype, 40, 24, seed=1).T, typed(dtype, 40, seed=2)
    results = []
    for engine in (ENGINE, NUMPY):
        out = typed(dtype if out_dtype == "own" else FLOAT32, ROWS, 40, seed=3)
        engine.matmul(left, right, out, None if accumulate else bias, accumulate)
        results.append(out)
    assert_equal(*results, TYPES[dtype])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_of_weights(dtype, accumulate):
    """dy^T x of 700 rows into a matrix with gaps, added or over NaN, is summed in float32.

    Where the CPU multiplies bfloat16, the part that another thread would compute has the same bits: the number of rows
    does not decide between gemm and a primitive.
    """
    dy, x = typed(dtype, 700, 330)[:, 3:303], typed(dtype, 700, 270, seed=1)[:, :260]
    results = []
    for engine in (ENGINE, NUMPY):
        out = typed(FLOAT32, 300, 270, seed=2) if accumulate else np.full((300, 270), np.nan, np.float32)
        part = out[32:, 2:262].copy()
        engine.matmul(dy.T, x, out[:, 2:262], accumulate=accumulate)
        engine.matmul(dy[:, 32:].T, x, part, accumulate=accumulate)
        results.append(out[:, 2:262])
        if engine is ENGINE and dtype == BFLOAT16 and onednn.BFLOAT16_PRODUCTS:
            assert np.array_equal(part, out[32:, 2:262])
    assert_equal(*results, TYPES[FLOAT32] * 8)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_additions(dtype):
    """`add` with and without bias, mask and residual, which may be float32 beside 16-bit values."""
    x, bias, mask = typed(dtype, ROWS, 40), typed(dtype, 40, seed=1), normal(ROWS, 40, seed=2)
    for residual in (None, typed(dtype, ROWS, 40, seed=3), typed(FLOAT32, ROWS, 40, seed=3)):
        for given in ((bias, mask), (bias, None), (None, mask), (None, None)):
            outs = [np.empty(x.shape, dtype if residual is None else residual.dtype) for _ in range(2)]
            for engine, out in zip((ENGINE, NUMPY), outs, strict=True):
                engine.add(x, *given, residual, out)
            assert_equal(*outs, TYPES[outs[0].dtype])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_cross_entropy(dtype):
    """Maximum and sum of exponentials of logits, and weighted exponentials written over the logits or elsewhere."""
    x, weight = typed(dtype, ROWS, 130), normal(ROWS, seed=1)
    ours, numpys = [], []
    for engine, results in ((ENGINE, ours), (NUMPY, numpys)):
        maximum, total = np.empty((2, ROWS), FLOAT32)
        out, over = np.empty_like(x), x.copy()
        engine.logit_statistics(x, maximum, total)
        engine.weighted_exponentials(x, maximum, weight, out)
        engine.weighted_exponentials(over, maximum, weight, over)
        results += [maximum, total, out, over]
    for one, other in zip(ours, numpys, strict=True):
        assert_equal(one, other, TYPES[one.dtype])
    np.testing.assert_array_equal(widened(ours[2]), widened(ours[3]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_rows(dtype):
    """`sum_rows` of the process's engine, the sum over rows in float32, equals numpy's for every type."""
    x, ours, numpys = typed(dtype, 300, 40), np.empty(40, FLOAT32), np.empty(40, FLOAT32)
    ENGINE.sum_rows(x, ours)
    NUMPY.sum_rows(x, numpys)
    assert_equal(ours, numpys, 3e-6)


def test_a_primitive_runs_in_several_threads_at_once():
    """Concurrent calls of one primitive give the results of calls one after the other, as each thread has memory
    objects of its own."""
    from concurrent.futures import ThreadPoolExecutor

    left, right = normal(64, 200), normal(200, 96, seed=1)
    expected = left @ right

    def product(factor: int) -> bool:
        out = np.empty((64, 96), FLOAT32)
        for _ in range(50):
            ENGINE.matmul(left * np.float32(factor), right, out)
        return bool(np.allclose(out, expected * factor, rtol=1e-5, atol=1e-4))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(product, range(1, 9)))


@pytest.mark.parametrize("decay", [0.99, 0.0])
def test_adamw(decay):
    """Parameters and both averages after two steps, the first with learning rate 0; with a second decay of 0, for which
    ours calls numpy's engine."""
    results = []
    for engine in (ENGINE, NUMPY):
        arrays = [normal(40_001, seed=i).astype(np.float32) for i in range(2)]
        arrays += [np.zeros(40_001, FLOAT32), np.zeros(40_001, FLOAT32)]
        for learning_rate, correction in ((0.0, 4.0), (0.1, 3.0)):
            engine.adamw(*arrays, AdamwStep(0.9, 0.95, 1e-3, 0.05, 0.1, correction, learning_rate, decay))
        results.append(arrays)
    for ours, numpys in zip(*results, strict=True):
        assert_equal(ours, numpys, 3e-6)
    assert np.abs(results[0][2]).max() > 0.01
