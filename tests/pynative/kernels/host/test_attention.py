"""Attention on the host: every engine, type and option against float64, and memory that grows with the sequence."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import mindspore
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import from_numpy

from parallel_core.attention.score_form import PLAIN, ScoreForm, alibi_slopes
from pynative import kernels
from pynative.kernels.block import AttentionRule
from pynative.kernels.dropout import attention_dropout_mask
from pynative.kernels.host.attention import backward, forward, heads
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.engine.numpy_engine import NumpyEngine
from tests.support.documents import drawn_starts
from tests.support.kernels import assert_close, normal, run_operator, softmax, tensor, upstream, values

ENGINES = {"numpy": NumpyEngine(), "this process's": ENGINE}
TYPES = {mindspore.float32: (3e-6, 2e-5), mindspore.bfloat16: (2e-2, 3e-2), mindspore.float16: (2e-3, 4e-3)}
"""Type -> (largest difference of the output, of gradients), relative to the largest entry."""
MODULES = (heads, forward, backward)


@contextmanager
def computing_with(engine: str) -> Iterator[None]:
    """Within the context, attention computes with this one of ENGINES."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "ENGINE", ENGINES[engine])
        yield


@pytest.fixture(params=ENGINES)
def engine(request):
    with computing_with(request.param):
        yield ENGINES[request.param]


def reference(q, k, v, scale, hidden, kept, upstream_gradient, form=PLAIN, first_head=0):
    """(output, gradients of q, k and v) by their definitions; hidden bool [b, n, s, s], kept the dropout mask."""
    groups, size = k.shape[2], q.shape[2] // k.shape[2]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, size, axis=2) for x in (k, v))
    scores, slope, places = np.einsum("sbnd,tbnd->bnst", q, k) * scale, 1.0, np.arange(len(q))
    if form.soft_cap is not None:
        slope = 1 / np.cosh(scores / form.soft_cap) ** 2
        scores = form.soft_cap * np.tanh(scores / form.soft_cap)
    if form.slopes is not None:
        slopes = np.array(form.slopes[first_head : first_head + q.shape[2]])[:, None, None]
        scores = scores - slopes * (places[:, None] - places)
    if form.window is not None:
        hidden = hidden | (places[:, None] - places > form.window)
    p = softmax(np.where(hidden, -10000.0, scores))
    out = np.einsum("bnst,tbnd->sbnd", p * kept, v)
    dout = upstream_gradient.reshape(out.shape)
    dp = np.einsum("sbnd,tbnd->bnst", dout, v) * kept
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * np.logical_not(hidden) * slope * scale
    dq = np.einsum("bnst,tbnd->sbnd", ds, k)
    dk, dv = np.einsum("bnst,sbnd->tbnd", ds, q), np.einsum("bnst,sbnd->tbnd", p * kept, dout)
    dk, dv = (x.reshape(*x.shape[:2], groups, size, -1).sum(3) for x in (dk, dv))
    return out.reshape(*q.shape[:2], -1), (dq, dk, dv)


def check(shape, options, dtype=mindspore.float32, spread=1.0, engines=ENGINES):
    """Compare output and gradients of each engine with the float64 reference. shape: (s, b, n, g, d, width of values);
    `spread` multiplies queries and keys."""
    length, batch, count, groups, size, value_size = shape
    shapes = ((count, size), (groups, size), (groups, value_size))
    arrays = [normal(length, batch, *each, seed=seed) for seed, each in enumerate(shapes)]
    arrays = [values(tensor(x * factor, dtype)) for x, factor in zip(arrays, (spread, spread, 1.0), strict=True)]
    hidden, kept = np.zeros((batch, count, length, length), bool), np.ones(1)
    if "mask" in options:
        hidden = hidden | options["mask"].asnumpy()
    elif options.get("causal", True):
        hidden = hidden | ~np.tri(length, dtype=bool)
    if "first_keys" in options:
        hidden = hidden | (np.arange(length) < options["first_keys"][:, None, :, None])
    if "dropout_rate" in options:
        key, rate, first = options["dropout_key"], options["dropout_rate"], options.get("head_offset", 0)
        masks = [attention_dropout_mask(key, b, first + n, (length, length), rate)
                 for b in range(batch) for n in range(count)]  # fmt: skip
        kept = np.array(masks).reshape(batch, count, length, length)
    dout = upstream((length, batch, count * value_size), 0)
    form, first_head = options.get("form", PLAIN), options.get("head_offset", 0)
    expected, expected_gradients = reference(*arrays, 0.4, hidden, kept, dout, form, first_head)
    rule = AttentionRule(scale=0.4, **options)
    for engine in engines:
        with computing_with(engine):
            outputs, gradients = run_operator(lambda *x: kernels.attention(*x, rule), arrays, dtype)
        assert_close(outputs[0], expected, TYPES[dtype][0] * spread**2)
        for ours, wanted in zip(gradients, expected_gradients, strict=True):
            assert_close(ours, wanted, TYPES[dtype][1] * spread**2)


SHAPES = {
    "one of everything": (1, 1, 1, 1, 4, 4),
    "one position, groups": (1, 2, 4, 2, 16, 24),
    "two rows more than a block": (130, 2, 4, 4, 8, 8),
    "odd, one group": (37, 3, 3, 1, 5, 3),
    "several tiles of keys": (1100, 1, 2, 1, 8, 5),
    "several runs of heads": (130, 4, 10, 5, 16, 16),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_causal(shape, dtype):
    """Causal attention of each shape and type by every engine is near float64, output and gradients."""
    check(SHAPES[shape], {}, dtype)


def document_mask(batch: int, length: int, hidden_row: int) -> np.ndarray:
    """bool [b, 1, s, s], true where hidden: causal, 30% more at random, and `hidden_row` of the first sample, which
    sees nothing and so attends evenly."""
    mask = ~np.tri(length, dtype=bool) | (np.random.default_rng(3).random((batch, 1, length, length)) < 0.3)
    mask[0, 0, hidden_row] = True
    return mask


OPTIONS = {
    "everything seen": {"causal": False},
    "a mask each": {"mask": from_numpy(document_mask(3, 140, 7))},
    "one mask": {"mask": from_numpy(document_mask(1, 140, 139))},
    "dropout": {"dropout_rate": 0.3, "dropout_key": (5, 1), "head_offset": 6},
    "dropout, mask": {"mask": from_numpy(document_mask(3, 140, 0)), "dropout_rate": 0.1, "dropout_key": (2,)},
    "dropout, everything seen": {"causal": False, "dropout_rate": 0.5, "dropout_key": (2, 3)},
    "window": {"form": ScoreForm(window=37)},
    "its own key and one": {"form": ScoreForm(window=1)},
    "window and a mask each": {"form": ScoreForm(window=9), "mask": from_numpy(document_mask(3, 140, 7))},
    "cap": {"form": ScoreForm(soft_cap=1.5)},
    "alibi": {"form": ScoreForm(slopes=alibi_slopes(12)), "head_offset": 6},
    "documents": {"first_keys": drawn_starts(3, 140, 0, 0.05)},
    "documents of one position, of all": {"first_keys": np.outer([0, 1, 0], np.arange(140)).astype(np.int32)},
    "documents, dropout": {"first_keys": drawn_starts(3, 140, 1), "dropout_rate": 0.3, "dropout_key": (5, 1)},
    "documents, window": {"first_keys": drawn_starts(3, 140, 2, 0.02), "form": ScoreForm(window=9)},
    "documents, a mask each": {
        "first_keys": drawn_starts(3, 140, 3), "mask": from_numpy(document_mask(3, 140, 7)), "form": ScoreForm(30)
    },
    "documents of everything before": {"first_keys": drawn_starts(3, 140, 4), "causal": False},
    "all of them": {
        "first_keys": drawn_starts(3, 140, 5, 0.03),
        "form": ScoreForm(20, 0.7, alibi_slopes(12)), "head_offset": 2, "dropout_rate": 0.3, "dropout_key": (5, 1)
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("option", OPTIONS)
def test_options(option, dtype):
    """Attention under each of OPTIONS, in each type, by every engine is near float64, output and gradients."""
    check((140, 3, 4, 2, 8, 6), OPTIONS[option], dtype)


@pytest.mark.parametrize("window", [1, 100, 127, 128, 600, 1098, 1099])
def test_windows_across_several_tiles(window):
    """Windows shorter and longer than tiles: a tile that no query of the block sees is left out, one that some see is
    cut at its edge."""
    check(SHAPES["several tiles of keys"], {"form": ScoreForm(window=window)})


def test_a_window_saves_work(monkeypatch):
    """With a window, scores are computed in tiles of 128 queries within 128 keys of it alone, without one s x s / 2 of
    them."""
    computed = []
    real = ENGINE.score_exponentials

    def counting(keys, queries, out, *rest):
        computed.append(out[0].size)
        real(keys, queries, out, *rest)

    monkeypatch.setattr(ENGINE, "score_exponentials", counting)
    q, k, v = (from_numpy(normal(2048, 1, 1, 4, seed=seed)) for seed in range(3))
    kernels.attention(q, k, v, AttentionRule(scale=0.4, form=ScoreForm(window=200)))
    assert sum(computed) <= 2048 * (200 + 2 * 128)


@pytest.mark.parametrize("form", [PLAIN, ScoreForm(window=300)], ids=["all", "window"])
@pytest.mark.parametrize("starts", [(700,), (3, 131, 640), (90, 100, 230, 231, 990), (513, 1025)], ids=str)
def test_documents_across_several_tiles(starts, form):
    """Packed documents longer and shorter than tiles, beginning anywhere, equal the reference with a mask."""
    first_keys = np.zeros((1, 1100), np.int32)
    for start in starts:
        first_keys[:, start:] = start
    check(SHAPES["several tiles of keys"], {"first_keys": first_keys, "form": form})


@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=5),
    batch=st.integers(1, 2),
    groups=st.integers(1, 2),
    window=st.none() | st.integers(1, 150),
    dropout=st.sampled_from([0.0, 0.2]),
)
@settings(max_examples=15, deadline=None)
def test_any_documents(lengths, batch, groups, window, dropout):
    """Drawn documents, windows and dropout equal the reference; the second sample has the documents in
    reverse order."""
    rows = [np.repeat(np.cumsum([0, *order[:-1]]), order) for order in (lengths, lengths[::-1])][:batch]
    options = {"first_keys": np.array(rows, np.int32), "form": ScoreForm(window)}
    options |= {"dropout_rate": dropout, "dropout_key": (3,)} if dropout else {}
    check((sum(lengths), batch, 2 * groups, groups, 4, 3), options, engines=["this process's"])


@pytest.mark.parametrize("length", [8, 130, 300, 512])
def test_documents_of_a_row_are_what_they_are_apart(length):
    """Packed documents have the outputs and gradients of separate ones, and compute as many scores; short ones, which
    share a block, some more."""
    arrays = [normal(2048 // length * length, 1, n, 8, seed=seed) for seed, n in enumerate((4, 2, 2))]
    starts = np.arange(len(arrays[0]), dtype=np.int32)[None] // length * length
    apart = [x.reshape(-1, length, *x.shape[2:]).swapaxes(0, 1) for x in arrays]
    dout = upstream((len(arrays[0]), 1, 32), 0)
    dout_apart = dout.reshape(-1, length, 32).swapaxes(0, 1)
    one, packed = counted(apart, [dout_apart]), counted(arrays, [dout], first_keys=starts)
    for ours, theirs in zip(packed[0], one[0], strict=True):
        assert_close(ours, theirs.swapaxes(0, 1).reshape(ours.shape), 1e-6)
    assert packed[1] == one[1] if length >= 128 else packed[1] <= 64 * 2048 * 4 * 2


def counted(arrays, gradients, **options) -> tuple[list, int]:
    """(output and gradients of attention, number of scores that were computed forward and backward)."""
    computed, real = [], ENGINE.score_exponentials

    def counting(keys, queries, out, *rest):
        computed.append(out.size)
        real(keys, queries, out, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ENGINE, "score_exponentials", counting)
        out, found = run_operator(
            lambda *x: kernels.attention(*x, AttentionRule(scale=0.4, **options)), arrays, gradients=gradients
        )
    return out + found, sum(computed)


@pytest.mark.parametrize("option", ["causal", "everything seen", "a mask each", "window", "documents"])
@pytest.mark.parametrize("spread", [12.0, 30.0])
def test_scores_that_exp_cannot_take(spread, option):
    """Scores of hundreds and thousands, whose exp overflows or vanishes unless the maximum is subtracted. Such scores
    have fewer digits after the point, so the tolerance is wider."""
    check((140, 3, 4, 2, 8, 8), OPTIONS.get(option, {}), spread=spread)


def test_not_a_number_is_not_hidden(engine):
    """A NaN in one query makes that query's row of the output NaN, and no other row."""
    q, k, v = (normal(140, 1, 2, 8, seed=seed) for seed in range(3))
    q[5, 0, 1, 3] = np.nan
    out = kernels.attention(*(from_numpy(x) for x in (q, k, v)), AttentionRule(scale=0.4)).asnumpy()
    rows = np.isnan(out).reshape(140, 2, 8)
    assert rows[5, 1].all() and rows.sum() == 8


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16], ids=str)
def test_threads_change_nothing(dtype):
    """One thread and two give the same bits, as the division into heads and blocks of rows depends on the
    shape alone."""
    arrays = [normal(300, 2, n, 16, seed=seed) for seed, n in enumerate((16, 8, 8))]
    kernels.use("host", threads=1)
    alone = run_operator(lambda *x: kernels.attention(*x, AttentionRule(scale=0.4)), arrays, dtype)
    kernels.use("host", threads=2)
    shared = run_operator(lambda *x: kernels.attention(*x, AttentionRule(scale=0.4)), arrays, dtype)
    for ours, theirs in zip(alone[0] + alone[1], shared[0] + shared[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def peak_bytes(length: int, **options) -> int:
    """Most bytes that numpy arrays took during forward and backward of attention, beyond those before."""
    arrays = [normal(length, 1, 2, 4, seed=seed) for seed in range(3)]
    tracemalloc.start()
    try:
        run_operator(lambda *x: kernels.attention(*x, AttentionRule(scale=0.4, **options)), arrays)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("option", ["causal", "dropout"])
def test_memory_grows_with_the_sequence_not_with_its_square(option, engine):
    """Attention's peak memory: less than 2.2 times as much for twice s, and than a quarter of a float32 [s, s]."""
    options = OPTIONS.get(option, {})
    peak_bytes(2048, **options)  # makes masks of the diagonal, which are made once
    short, long = peak_bytes(2048, **options), peak_bytes(4096, **options)
    assert long < 2.2 * short
    assert long < 4096 * 4096 * 4 / 4
