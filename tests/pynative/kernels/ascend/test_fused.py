"""An Ascend's operators on doubles give what the composed ones give, in every type and form that they are used in.

Training is float32 so far, which flash attention does not take: its 16-bit calls are made here.
"""

from dataclasses import replace
from functools import wraps

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from parallel_core.attention.score_form import ScoreForm, alibi_slopes
from parallel_core.config.fused import NAMES, FusedOperators
from pynative import kernels
from pynative.kernels.ascend import fused, grouped_matmul
from pynative.kernels.block import AttentionRule
from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.moe.experts import grouped_linear
from pynative.tape.autograd import backward, leaf, recording, take_gradient
from tests.support.ascend import flash_attention, stack
from tests.support.ascend.stack import ascend_operators
from tests.support.kernels import assert_close, normal, run_operator, tensor, upstream, values

TYPES = {"float16": (mindspore.float16, 2.0**-8), "bfloat16": (mindspore.bfloat16, 2.0**-5)}
SEQUENCE, BATCH, HEADS, GROUPS, SIZE = 24, 2, 4, 2, 16


def computed(operator: str, inputs: list[np.ndarray], dtype: object, arguments: tuple = (), **settings) -> list:
    """Output and gradients of an operator on these inputs, through the tape; `arguments` follow the inputs and get no
    gradient."""
    leaves = [leaf(tensor(x, dtype)) for x in inputs]
    with recording():
        y = getattr(kernels, operator)(*(x * 1.0 for x in leaves), *arguments, **settings)
        backward([y], [tensor(upstream(y.shape, 0), y.dtype)])
    assert y.dtype == dtype
    return [values(x) for x in (y, *(take_gradient(x) for x in leaves))]


def on_both(operator: str, inputs, dtype, arguments=(), layout="SBH", **settings) -> tuple[list, list]:
    """`computed` by an Ascend's operators (doubles) with everything fused, and by the composed operators."""
    kernels.use("ops")
    composed = computed(operator, inputs, dtype, arguments, **settings)
    with ascend_operators():
        kernels.use("ops", fused=FusedOperators(tuple(NAMES), layout))
        fused = computed(operator, inputs, dtype, arguments, **settings)
    return fused, composed


def equal(pair: tuple[list, list], tolerance: float) -> None:
    for one, other in zip(*pair, strict=True):
        assert_close(one, other, tolerance)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """A list that gets the name of each flash attention double when it is called."""
    seen: list[str] = []
    rule = flash_attention.check_inputs

    def noting(*arguments):
        seen.append("flash attention")
        return rule(*arguments)

    monkeypatch.setattr(flash_attention, "check_inputs", noting)
    return seen


def heads(size: int = SIZE, value_size: int = SIZE) -> list[np.ndarray]:
    """Drawn [q, k, v] of SEQUENCE x BATCH tokens."""
    shapes = [(SEQUENCE, BATCH, *shape) for shape in ((HEADS, size), (GROUPS, size), (GROUPS, value_size))]
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


MASKS = {
    "causal": (None, True),
    "all": (None, False),
    "one mask": (~np.tri(SEQUENCE, dtype=bool)[None, None], True),
    "a mask each": (np.stack([~np.tri(SEQUENCE, dtype=bool), ~np.tri(SEQUENCE, k=2, dtype=bool)])[:, None], True),
}


VALUE_SIZES = {"causal": 8, "all": 32}
"""Mask -> width of the values, narrower and wider than the keys; the width of the keys where a mask is not here."""


@pytest.mark.parametrize("layout", flash_attention.AXES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_flash_attention(dtype, mask, layout, calls):
    """Every layout and mask, grouped heads: the fused operator is called and equals the composed one; bfloat16 is
    compared with float32, as a CPU multiplies none."""
    (given, causal), arrays = MASKS[mask], heads(value_size=VALUE_SIZES.get(mask, SIZE))
    rule = AttentionRule(scale=0.25, causal=causal, mask=None if given is None else Tensor(given))
    kind, tolerance = TYPES[dtype]
    if dtype == "float16":
        equal(on_both("attention", arrays, kind, layout=layout, rule=rule), tolerance)
    else:
        with ascend_operators():
            kernels.use("ops", fused=FusedOperators(tuple(NAMES), layout))
            fused = computed("attention", arrays, kind, rule=rule)
        kernels.use("ops")
        equal((fused, computed("attention", arrays, mindspore.float32, rule=rule)), tolerance)
    assert calls, "attention was composed"


@pytest.mark.parametrize(
    ("size", "dtype", "dropout"),
    [(16, "Float32", 0.0), (8, "Float16", 0.0), (528, "Float16", 0.0), (16, "Float16", 0.1)],
)
def test_what_flash_attention_does_not_take_is_composed(size, dtype, dropout, calls):
    """float32, head sizes of 8 and 528, and dropout, which the kernel does not take: no flash attention is called,
    results are equal."""
    kind = getattr(mindspore, dtype.lower())
    rule = AttentionRule(scale=0.25, dropout_rate=dropout, dropout_key=(1, 2))
    equal(on_both("attention", heads(size, size), kind, rule=rule), 2.0**-7)
    assert not calls


def test_a_window_is_a_band_of_the_kernel(calls):
    """A window runs flash attention (sparse_mode 4); a soft cap, ALiBi, and a window beside a mask are composed."""
    form = ScoreForm(window=3)
    equal(on_both("attention", heads(), mindspore.float16, rule=AttentionRule(scale=0.25, form=form)), 2.0**-7)
    assert calls
    calls.clear()
    for form in (ScoreForm(soft_cap=1.0), ScoreForm(slopes=alibi_slopes(HEADS))):
        equal(on_both("attention", heads(), mindspore.float16, rule=AttentionRule(scale=0.25, form=form)), 2.0**-7)
    mask = Tensor(MASKS["a mask each"][0])
    equal(
        on_both("attention", heads(), mindspore.float16, rule=AttentionRule(scale=0.25, form=ScoreForm(3), mask=mask)),
        2.0**-7,
    )
    assert not calls


STARTS = np.array([[0] * 5 + [5] * 11 + [16] * 8, [0, 1, 2, *[3] * 21]], np.int32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_documents_lie_one_behind_the_other_for_the_kernel(dtype, calls):
    """Documents run flash attention in layout TND with their lengths; with a window, which TND lacks, or beside a mask
    they are composed."""
    rule = AttentionRule(scale=0.25, first_keys=STARTS)
    kind, tolerance = TYPES[dtype]
    with ascend_operators():
        kernels.use("ops", fused=FusedOperators(tuple(NAMES), "SBH"))
        by_kernel = computed("attention", heads(value_size=8), kind, rule=rule)
    assert calls, "attention was composed"
    calls.clear()
    kernels.use("ops")
    equal((by_kernel, computed("attention", heads(value_size=8), mindspore.float32, rule=rule)), tolerance)
    if dtype == "float16":
        seen = Tensor(~np.tri(SEQUENCE, dtype=bool)[None, None])
        for more in ({"form": ScoreForm(3)}, {"mask": seen}, {"causal": False}):
            equal(on_both("attention", heads(), kind, rule=replace(rule, **more)), 2.0**-7)
        assert not calls


def test_more_documents_than_the_kernel_takes_are_composed(calls, monkeypatch):
    """Attention over more than MAXIMUM_DOCUMENTS documents is composed, over as many fused, with equal results."""
    monkeypatch.setattr(fused, "MAXIMUM_DOCUMENTS", 6)
    equal(on_both("attention", heads(), mindspore.float16, rule=AttentionRule(scale=0.25, first_keys=STARTS)), 2.0**-7)
    assert not calls
    monkeypatch.setattr(fused, "MAXIMUM_DOCUMENTS", 7)
    equal(on_both("attention", heads(), mindspore.float16, rule=AttentionRule(scale=0.25, first_keys=STARTS)), 2.0**-7)
    assert calls


ANGLES = normal(SEQUENCE, 1, SIZE), normal(SEQUENCE, BATCH, SIZE)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("angles", ANGLES, ids=["shared", "per sample"])
@pytest.mark.parametrize("size", [SIZE, SIZE + 8], ids=["whole", "part"])
def test_rotary(size, angles, interleaved):
    """The fused rotary embedding equals the composed one, on all or a part of each head, with angles by position or by
    sample, halves or interleaved."""
    cos, sin = tensor(np.cos(angles)), tensor(np.sin(angles))
    x = [normal(SEQUENCE, BATCH, HEADS, size)]
    equal(on_both("rotary", x, mindspore.float32, (cos, sin, interleaved)), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("operator", "widths", "arguments"),
    [
        ("rms_norm", [(6, 2, 8), (8,)], (1e-5,)),
        ("rms_norm", [(6, 2, 8), (8,)], (1e-5, True)),
        ("layer_norm", [(6, 2, 8), (8,), (8,)], (1e-5,)),
        ("layer_norm", [(6, 2, 8), (8,), (8,)], (1e-5, True)),
        *(("bias_activation", [(6, 2, 8), (8,)], (name,)) for name in ("swiglu", "gelu_tanh", "gelu_erf", "silu")),
    ],
)
def test_norms_and_activations(operator, widths, arguments, dtype):
    """Norms and activations by an Ascend's operators equal the composed ones, results and gradients."""
    inputs = [normal(*shape, seed=seed) for seed, shape in enumerate(widths)]
    equal(on_both(operator, inputs, getattr(mindspore, dtype), arguments), 1e-6 if dtype == "float32" else 2.0**-7)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("activation", ["swiglu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [5, 0])
def test_experts_have_the_activations_of_dense_blocks(rows, activation, dtype, monkeypatch):
    """Experts' swiglu and gelu run the fused operators of dense blocks; a rank with no rows calls none."""
    seen: list[str] = []
    for name in ("swiglu", "gelu"):
        number, double = next((n, d) for n, d in enumerate(stack.DOUBLES) if d.name == name)
        noted = replace(double, function=_noting(double.function, seen))
        monkeypatch.setattr(stack, "DOUBLES", (*stack.DOUBLES[:number], noted, *stack.DOUBLES[number + 1 :]))
    factors = tensor(np.abs(normal(rows, seed=1)))
    found = on_both("weighted_activation", [normal(rows, 8)], getattr(mindspore, dtype), (factors, activation))
    equal(found, 1e-6 if dtype == "float32" else 2.0**-7)
    assert seen == ([activation.removesuffix("_tanh")] if rows else [])


def _noting(function, seen):
    @wraps(function)
    def noted(*arguments, **settings):
        seen.append(function.__name__)
        return function(*arguments, **settings)

    return noted


COUNTS = [(3, 0, 2), (0, 0, 5), (1, 4, 0), (0, 0, 0), (5,)]


@pytest.mark.parametrize("dtype", [mindspore.float16, mindspore.bfloat16, mindspore.float32], ids=str)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_experts_products_are_grouped(counts, dtype, monkeypatch):
    """Forward and both gradients run the grouped product kernel in calls of as many groups as it takes, without experts
    that have no rows; float32 is composed."""
    calls: list[int] = []
    made = grouped_matmul._grouped_matmul
    monkeypatch.setattr(grouped_matmul, "MOST_GROUPS", 2)
    monkeypatch.setattr(
        grouped_matmul, "_grouped_matmul", lambda *args, **more: calls.append(len(args[0])) or made(*args, **more)
    )
    inputs = [normal(sum(counts), 6), *(normal(4, 6, seed=seed + 1) for seed in range(len(counts)))]
    rounded = [values(tensor(x, dtype)) for x in inputs]

    def through(x, *weights):
        return grouped_linear(x, weights, counts)

    kernels.use("ops")
    expected, expected_gradients = run_operator(through, rounded)
    with ascend_operators():
        kernels.use("ops")
        outputs, gradients = run_operator(through, rounded, dtype)
    tolerance = {mindspore.float16: 2.0**-9, mindspore.bfloat16: 2.0**-6}.get(dtype, 1e-6)
    equal(((*outputs, *gradients), (*expected, *expected_gradients)), tolerance)
    groups = np.count_nonzero(counts) if dtype != mindspore.float32 and len(counts) > 1 else 0
    assert sum(calls) == 3 * groups and max(calls, default=0) <= 2


@pytest.mark.parametrize("accumulate", [True, False])
def test_gradients_of_grouped_products_go_where_they_are_wanted(accumulate):
    """Weight gradients of the grouped product go into given float32 memory, added or in its place; an expert without
    rows adds nothing."""
    counts, dy, x = (2, 0, 3), normal(5, 4), normal(5, 3, seed=1)
    before = [normal(4, 3, seed=seed) for seed in range(3)]
    out = [tensor(array.copy()) for array in before]
    with ascend_operators():
        kernels.use("ops")
        given = (tensor(array, mindspore.float16) for array in (dy, x))
        found = kernels.grouped_linear_weight_gradient(*given, counts, out, [accumulate] * 3)
    for n, (start, stop) in enumerate(((0, 2), (2, 2), (2, 5))):
        assert found[n] is out[n]
        assert_close(values(out[n]), dy[start:stop].T @ x[start:stop] + accumulate * before[n], 2.0**-8)


@pytest.mark.parametrize("variant", [{}, {"is_decoupled": False}, {"is_corrected": False}], ids=str)
def test_adam_counts_steps_as_the_composed_update_does(variant):
    """Three steps of an Ascend's fused Adam, which counts them from 0, equal the composed update; L2 regularisation is
    added to the gradient before the call."""
    states = []
    settings = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1} | variant
    for device in ("CPU", "Ascend"):
        state = [tensor(np.abs(normal(8, seed=seed)) + 0.5) for seed in range(4)]
        for step in (1, 2, 3):
            if device == "Ascend":
                with ascend_operators():
                    kernels.use("ops")
                    kernels.adam_(*state, AdamStep(step=step, grad_scale=0.5, **settings))
            else:
                kernels.use("ops")
                kernels.adam_(*state, AdamStep(step=step, grad_scale=0.5, **settings))
        states.append([values(x) for x in state])
    equal((states[0], states[1]), 1e-7)
