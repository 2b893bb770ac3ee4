"""Operators of `ops` that have a fused and a composed form: both give the same, and a switch changes its own operator
alone."""

import mindspore
import numpy as np
import pytest
from mindspore import from_numpy

from parallel_core.config.fused import NAMES, FusedOperators
from pynative import kernels
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract import CONTRACT
from pynative.kernels.ops import blocked_attention
from pynative.kernels.ops.attention import _Block
from tests.support.kernels import assert_close, normal, run_operator

HEADS = [normal(11, 2, heads, 8, seed=heads) for heads in (4, 2, 2)]
HIDDEN = np.random.default_rng(0).random((2, 1, 11, 11)) < 0.5

CASES = {
    "causal": {},
    "full": {"causal": False},
    "masked": {"mask": from_numpy(HIDDEN)},
    "dropout": {"dropout_rate": 0.3, "dropout_key": (5,), "head_offset": 2},
}


def _run(settings, dtype=mindspore.float32):
    outputs, gradients = run_operator(
        lambda *qkv: kernels.attention(*qkv, AttentionRule(scale=0.4, **settings)), HEADS, dtype
    )
    return outputs + gradients


@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_both_forms_of_attention_agree(name, dtype, monkeypatch):
    """Outputs and all gradients; in 16 bits within the rounding of the composed form's intermediate results."""
    monkeypatch.setattr(blocked_attention, "QUERY_BLOCK", 4)  # 11 queries: three blocks, the last one shorter
    kernels.use("ops")
    composed = _run(CASES[name], dtype)
    kernels.use("ops", fused=FusedOperators(("attention",)))
    frugal_form = _run(CASES[name], dtype)
    for one, other in zip(composed, frugal_form, strict=True):
        assert_close(other, one, 1e-6 if dtype == mindspore.float32 else 2.0**-8)


def test_blocked_attention_never_has_a_square_of_scores(monkeypatch):
    """Blocked attention of `ops`, forward and backward, makes no array of scores with more queries than a block."""
    monkeypatch.setattr(blocked_attention, "QUERY_BLOCK", 4)
    shapes, original = [], _Block.score_values
    monkeypatch.setattr(_Block, "score_values", lambda self, x: shapes.append(self.shape) or original(self, x))
    kernels.use("ops", fused=FusedOperators(("attention",)))
    _run(CASES["causal"])
    assert {queries for _, _, queries, _ in shapes} == {4, 3} and len(shapes) == 2 * 5


def _selected(implementation, *switches):
    kernels.use(implementation, fused=FusedOperators(switches))
    return {name: getattr(kernels, name) for name in CONTRACT}


OTHER_FORMS = {"attention"}
"""Operators that the switches replace: the composed form keeps more for the backward than the fused one."""


@pytest.mark.parametrize("switch", NAMES)
def test_a_switch_changes_its_operator_alone(switch):
    """A switch of a fused operator replaces at most that operator of `ops`, and only while it is selected."""
    before, after = _selected("ops"), _selected("ops", switch)
    assert {name for name in CONTRACT if after[name] is not before[name]} == {switch} & OTHER_FORMS
    assert _selected("ops") == before


def test_the_host_has_one_form():
    """Operators of `host` are the same functions with all switches as with none."""
    assert _selected("host", *NAMES) == _selected("host")


def test_a_switch_that_does_not_exist_is_our_mistake():
    """FusedOperators of an operator that has no switch is an AssertionError."""
    with pytest.raises(AssertionError, match="no switch for"):
        FusedOperators(("layer_norm",))
