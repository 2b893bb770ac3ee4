"""The switched operators of `ops`: both forms give the same, and a switch changes the form of its operator alone."""

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from parallel_core.config.fused import NAMES, FusedOperators
from pynative import kernels
from pynative.kernels.contract import CONTRACT
from pynative.kernels.ops import blocked_attention
from pynative.kernels.ops.attention import _Block
from tests.support.kernels import assert_close, normal, run_operator, tensor

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
    "swiglu of experts": (
        "bias_activation",
        lambda x, p: kernels.weighted_activation(x, p, "swiglu"),
        (normal(7, 10), np.abs(normal(7, seed=1))),
    ),
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
    monkeypatch.setattr(_Block, "score_values", lambda self, x: shapes.append(self.shape) or original(self, x))
    kernels.use("ops", fused=FusedOperators(("attention",)))
    run_operator(CASES["causal"][1], HEADS)
    assert {queries for _, _, queries, _ in shapes} == {4, 3} and len(shapes) == 2 * 5


def _selected(implementation, *switches):
    kernels.use(implementation, fused=FusedOperators(switches))
    return {name: getattr(kernels, name) for name in CONTRACT}


OTHER_FORMS = {"attention"}
"""Of the others the composed form keeps as little."""


@pytest.mark.parametrize("switch", NAMES)
def test_a_switch_changes_its_operator_alone(switch):
    before, after = _selected("ops"), _selected("ops", switch)
    assert {name for name in CONTRACT if after[name] is not before[name]} == {switch} & OTHER_FORMS
    assert _selected("ops") == before


def test_the_host_has_one_form():
    assert _selected("host", *NAMES) == _selected("host")


def test_a_switch_that_does_not_exist_is_our_mistake():
    with pytest.raises(AssertionError, match="no switch for"):
        FusedOperators(("layer_norm",))
