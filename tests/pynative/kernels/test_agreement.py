"""Operators at sizes of several blocks: `host` and `ops` agree, and the number of threads changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mindspore import from_numpy

from parallel_core.attention.score_form import ScoreForm, alibi_slopes
from parallel_core.config.fused import FusedOperators
from parallel_core.numerics.activations import adjusted
from pynative import kernels
from pynative.context_parallel.ring import Sinks, ring_attention
from pynative.kernels.block import AttentionRule
from tests.support.documents import drawn_starts
from tests.support.kernels import assert_close, linear, normal, run_operator, tensor

SEQUENCE = 300  # more than two blocks of queries, the last one shorter


FORMS = {
    "window": ScoreForm(window=50),
    "wide window": ScoreForm(window=270),
    "cap": ScoreForm(soft_cap=0.8),
    "alibi": ScoreForm(slopes=alibi_slopes(6)),
    "window, cap, alibi": ScoreForm(140, 1.5, alibi_slopes(6)),
}


DOCUMENTS = drawn_starts(2, SEQUENCE, 0, 0.02)


def attention(q, k, v, **rule):
    return kernels.attention(q, k, v, AttentionRule(scale=0.2, **rule))


def _with_sinks(q, k, v, sinks):
    """Windowed attention with a learned sink for each head, which is outside of the window's count."""
    rule = AttentionRule(scale=0.2, form=FORMS["window"])
    return ring_attention(q, k, v, SimpleNamespace(size=1, rank=0), rule, Sinks(sinks, 0))


def _cases():
    """Name -> (operator, inputs), with rows enough for several cache blocks and of numbers that no block size
    divides."""
    angles = normal(SEQUENCE, 16, seed=3)
    heads = [normal(SEQUENCE, 2, n, 16, seed=n) for n in (6, 3, 3)]
    hidden = np.random.default_rng(1).random((2, 1, SEQUENCE, SEQUENCE)) < 0.5
    ids = np.random.default_rng(2).integers(-50, 150, (2, SEQUENCE)).astype(np.int32)
    x, wide = normal(SEQUENCE, 7, 129), normal(SEQUENCE, 7, 130)
    vector, vector2 = normal(129, seed=1), normal(129, seed=2)
    key = (3, 1)
    return {
        "layer_norm": (lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), (x, vector, vector2)),
        "rms_norm": (lambda x, w: kernels.rms_norm(x, w, 1e-5, True), (x, vector)),
        "linear": (linear, (x, normal(257, 129), normal(257))),
        "gelu_tanh": (lambda x, b: kernels.bias_activation(x, b, "gelu_tanh"), (x, vector)),
        "gelu_erf": (lambda x, b: kernels.bias_activation(x, b, "gelu_erf"), (x, vector)),
        "swiglu": (lambda x, b: kernels.bias_activation(x, b, "swiglu"), (wide, normal(130))),
        "quick": (lambda x, b: kernels.bias_activation(x, b, "geglu_quick"), (wide, normal(130))),
        "limited": (lambda x, b: kernels.bias_activation(x, b, adjusted("geglu_quick", 0.7, 1)), (wide, normal(130))),
        "limited swiglu": (lambda x, b: kernels.bias_activation(x, b, adjusted("swiglu", 0.7, 0)), (wide, normal(130))),
        "swiglu with a gain": (
            lambda x, b: kernels.bias_activation(x, b, adjusted("swiglu", None, 0, 0.3)), (wide, normal(130))
        ),
        "scale_features": (lambda x: kernels.scale_features(x, vector), (x,)),
        "sinks": (_with_sinks, (*heads, np.linspace(-2, 4, 6, dtype=np.float32))),
        "split_qkv": (lambda x: kernels.split_qkv(x, 3, 2, 17), (normal(SEQUENCE, 5, 204),)),
        "rotary": (lambda x: kernels.rotary(x, tensor(angles), tensor(angles)), (normal(SEQUENCE, 2, 13, 24),)),
        "causal": (lambda q, k, v: attention(q, k, v), heads),
        "full": (lambda q, k, v: attention(q, k, v, causal=False), heads),
        "masked": (lambda q, k, v: attention(q, k, v, mask=from_numpy(hidden)), heads),
        "dropout": (lambda q, k, v: attention(q, k, v, dropout_rate=0.2, dropout_key=key), heads),
        **{name: (lambda q, k, v, form=form: attention(q, k, v, form=form), heads)
           for name, form in FORMS.items()},
        "window, masked": (
            lambda q, k, v: attention(q, k, v, mask=from_numpy(hidden), form=ScoreForm(50)), heads
        ),
        **{
            f"documents{name}": (
                lambda q, k, v, more=more: attention(q, k, v, first_keys=DOCUMENTS, **more), heads
            )
            for name, more in {
                "": {}, ", window": {"form": ScoreForm(30)}, ", masked": {"mask": from_numpy(hidden)},
                ", dropout": {"dropout_rate": 0.2, "dropout_key": key}, ", cap": {"form": FORMS["cap"]},
            }.items()
        },
        "bias_dropout_add": (lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.1, key), (x, vector, x * 2)),
        "embedding": (lambda w: kernels.embedding(from_numpy(ids), w, 0), (normal(101, 129),)),
    }  # fmt: skip


def _under(implementation, threads, case):
    kernels.use(implementation, threads)
    return [array for arrays in run_operator(*case) for array in arrays]


@pytest.mark.parametrize("name", _cases())
def test_implementations_agree(name):
    """Results and gradients of each case by `host` on two threads and by `ops` differ by at most 1e-5."""
    case = _cases()[name]
    for ours, theirs in zip(_under("host", 2, case), _under("ops", 1, case), strict=True):
        assert_close(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", [*FORMS, "window, masked", *(n for n in _cases() if n.startswith("documents"))])
def test_blocks_of_queries_agree(name):
    """`ops` attention in blocks of queries, which keeps no scores and reads a window's keys alone, agrees
    with `host`."""
    case = _cases()[name]
    kernels.use("ops", fused=FusedOperators(("attention",)))
    in_blocks = [array for arrays in run_operator(*case) for array in arrays]
    for ours, theirs in zip(in_blocks, _under("host", 1, case), strict=True):
        assert_close(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", _cases())
def test_threads_change_nothing(name):
    """One thread and two give the same bits, since blocks are cut by shape alone; only a linear layer's sums may be
    rounded otherwise."""
    case = _cases()[name]
    for one, two in zip(_under("host", 1, case), _under("host", 2, case), strict=True):
        if name == "linear":
            assert_close(two, one, 1e-6)
        else:
            np.testing.assert_array_equal(two, one)


@given(
    sequence=st.integers(2, 9),
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    heads_per_group=st.integers(1, 3),
    head_size=st.integers(1, 5),
    value_size=st.integers(1, 5),
    causal=st.booleans(),
    rate=st.sampled_from([0.0, 0.4]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_attention_agrees_at_any_shape(sequence, batch, groups, heads_per_group, head_size, value_size, causal, rate):
    """Attention by `host` and by `ops` agree to 1e-5 at drawn shapes, causal or not, with dropout or without."""
    shapes = ((groups * heads_per_group, head_size), (groups, head_size), (groups, value_size))
    heads = [normal(sequence, batch, *shape, seed=shape[0]) for shape in shapes]
    case = (
        lambda q, k, v: kernels.attention(
            q, k, v, AttentionRule(scale=0.5, causal=causal, dropout_rate=rate, dropout_key=(1,))
        ),
        heads,
    )
    for ours, theirs in zip(_under("host", 2, case), _under("ops", 1, case), strict=True):
        assert_close(ours, theirs, 1e-5)


def test_dropout_of_attention_follows_the_global_head():
    """Heads 2 and 3 alone, with head_offset 2, have the attention dropout that they have among all four."""
    heads = [normal(40, 2, 4, 8, seed=i) for i in range(3)]

    def run(first, stop):
        parts = [tensor(x[:, :, first:stop]) for x in heads]
        out = kernels.attention(*parts, AttentionRule(scale=0.3, dropout_rate=0.5, dropout_key=(2,), head_offset=first))
        return out.asnumpy().reshape(40, 2, -1, 8)

    np.testing.assert_array_equal(run(2, 4), run(0, 4)[:, :, 2:])
