"""The switched operators of `ops`: both forms give the same, and a switch changes the form of its operator alone."""

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy, ops

from parallel_core.config.fused import NAMES, FusedOperators
from pynative import kernels
from pynative.kernels.ascend import fused
from pynative.kernels.contract import CONTRACT
from pynative.kernels.ops import blocked_attention
from pynative.kernels.ops.attention import _Block
from tests.support.kernels import assert_close, normal, run_operator, tensor, values

ANGLES, SHORT_ANGLES = normal(7, 8, seed=3), normal(7, 3, 6, seed=4)
X, WIDE = normal(7, 3, 5, 8), normal(7, 3, 10)
HEADS = [normal(11, 2, heads, 8, seed=heads) for heads in (4, 2, 2)]
HIDDEN = np.random.default_rng(0).random((2, 1, 11, 11)) < 0.5

CASES = {
    "rotary": ("rotary", lambda x: kernels.rotary(x, tensor(ANGLES), tensor(ANGLES[::-1])), (X,)),
    "rotary neighbours": ("rotary", lambda x: kernels.rotary(x, tensor(ANGLES), tensor(-ANGLES), True), (X,)),
    "rotary share": ("rotary", lambda x: kernels.rotary(x, tensor(SHORT_ANGLES), tensor(SHORT_ANGLES)), (X,)),
    "swiglu": ("bias_activation", lambda x: kernels.bias_activation(x, None, "swiglu"), (WIDE,)),
    "swiglu bias": ("bias_activation", lambda x, b: kernels.bias_activation(x, b, "swiglu"), (WIDE, normal(10))),
    "gelu": ("bias_activation", lambda x, b: kernels.bias_activation(x, b, "gelu_erf"), (WIDE, normal(10))),
    "causal": ("attention", lambda q, k, v: kernels.attention(q, k, v, scale=0.4), HEADS),
    "full": ("attention", lambda q, k, v: kernels.attention(q, k, v, scale=0.4, causal=False), HEADS),
    "masked": ("attention", lambda q, k, v: kernels.attention(q, k, v, scale=0.4, mask=from_numpy(HIDDEN)), HEADS),
    "dropout": (
        "attention",
        lambda q, k, v: kernels.attention(q, k, v, scale=0.4, dropout_rate=0.3, dropout_key=(5,), head_offset=2),
        HEADS,
    ),
    "rms_norm": ("rms_norm", lambda x, w: kernels.rms_norm(x, w, 1e-5), (X, normal(8))),
    "rms_norm less one": ("rms_norm", lambda x, w: kernels.rms_norm(x, w, 1e-5, True), (X, normal(8))),
}


def _run(function, inputs, dtype):
    outputs, gradients = run_operator(function, inputs, dtype)
    return outputs + gradients


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_both_forms_agree(name, dtype, monkeypatch):
    """Outputs and all gradients; in 16 bits to the rounding of the composed form's intermediate results."""
    monkeypatch.setattr(blocked_attention, "QUERY_BLOCK", 4)  # 11 queries: three blocks, the last one shorter
    switch, function, inputs = CASES[name]
    kernels.use("ops")
    composed = _run(function, inputs, dtype)
    kernels.use("ops", fused=FusedOperators((switch,)))
    frugal_form = _run(function, inputs, dtype)
    for one, other in zip(composed, frugal_form, strict=True):
        assert_close(other, one, 1e-6 if dtype == mindspore.float32 else 2.0**-8)


def test_blocked_attention_never_has_a_square_of_scores(monkeypatch):
    """Forward and backward: no array of scores has more queries than a block."""
    monkeypatch.setattr(blocked_attention, "QUERY_BLOCK", 4)
    shapes, original = [], _Block.score_values
    monkeypatch.setattr(_Block, "score_values", lambda self: shapes.append(self.shape) or original(self))
    kernels.use("ops", fused=FusedOperators(("attention",)))
    run_operator(CASES["causal"][1], HEADS)
    assert {queries for _, _, queries, _ in shapes} == {4, 3} and len(shapes) == 2 * 5


def _selected(implementation, *switches):
    kernels.use(implementation, fused=FusedOperators(switches))
    return {name: getattr(kernels, name) for name in CONTRACT}


@pytest.mark.parametrize("switch", NAMES)
def test_a_switch_changes_its_operator_alone(switch):
    before, after = _selected("ops"), _selected("ops", switch)
    assert {name for name in CONTRACT if after[name] is not before[name]} == {switch}
    assert _selected("ops") == before


def test_the_host_has_one_form():
    assert _selected("host", *NAMES) == _selected("host")


def test_a_switch_that_does_not_exist_is_our_mistake():
    with pytest.raises(AssertionError, match="no switch for"):
        FusedOperators(("layer_norm",))


READERS = {
    "SBH": lambda x, heads: x.reshape(*x.shape[:2], heads, -1),
    "BSH": lambda x, heads: x.transpose(1, 0, 2).reshape(x.shape[1], x.shape[0], heads, -1),
    "BSND": lambda x, heads: x.transpose(1, 0, 2, 3),
    "BNSD": lambda x, heads: x.transpose(2, 0, 1, 3),
}
WRITERS = {
    "SBH": lambda y: y.reshape(*y.shape[:2], -1),
    "BSH": lambda y: y.transpose(1, 0, 2, 3).reshape(y.shape[1], y.shape[0], -1),
    "BSND": lambda y: y.transpose(1, 0, 2, 3),
    "BNSD": lambda y: y.transpose(1, 2, 0, 3),
}


def _stand_in(q, k, v, heads, attn_mask, scalar_value, input_layout, sparse_mode):
    """What MindSpore's documentation says of the kernel: the same layout in and out, heads of q by their number."""
    groups = heads * k.size // q.size
    q, k, v = (READERS[input_layout](x, n) for x, n in ((q, heads), (k, groups), (v, groups)))
    rows = kernels.attention(q, k, v, scale=scalar_value, causal=sparse_mode == 2)
    return WRITERS[input_layout](rows.reshape(*rows.shape[:2], heads, -1))


@pytest.mark.parametrize("layout", READERS)
def test_the_fused_attention_gets_heads_in_its_layout(layout, monkeypatch):
    """The kernel itself is an Ascend's; a stand-in that reads the layout shows what is handed to it and taken back."""
    kernels.use("ops")
    monkeypatch.setattr(ops, "flash_attention_score", _stand_in)
    q, k, v = (tensor(normal(6, 2, n, 8, seed=n), mindspore.float16) for n in (4, 2, 2))
    more = dict(scale=0.5, causal=True, mask=None, dropout_rate=0.0, dropout_key=(), head_offset=0)
    given = fused.flash_attention(layout)(q, k, v, **more)
    np.testing.assert_array_equal(values(given), values(kernels.attention(q, k, v, scale=0.5)))
