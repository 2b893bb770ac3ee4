"""Operators that are compiled into one launch: the bits of single launches, and compiled only where it pays."""

import gc

import numpy as np
import pytest
from mindspore import Parameter, Tensor, bfloat16, float16, float32, from_numpy, ops
from mindspore.graph import api

from parallel_core.score_form import ScoreForm
from pynative import autograd, kernels
from pynative.kernels.ops import jit_fuser as module
from pynative.kernels.ops.jit_fuser import jit_fuser
from tests.support.kernels import linear, normal, run_operator, tensor

X, WIDE, ROW = normal(7, 3, 8), normal(7, 3, 10), normal(10)
SPECIAL = np.array([[np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0]] * 3, np.float32)
HEADS = [normal(11, 2, heads, 8, seed=heads) for heads in (4, 2, 2)]
HIDDEN = np.random.default_rng(0).random((2, 1, 11, 11)) < 0.5
ANGLES = normal(7, 6, seed=3)
LABELS = np.arange(21, dtype=np.int32).reshape(7, 3) % 10


def attention(**options):
    return lambda q, k, v: kernels.attention(q, k, v, scale=0.4, **options)


def cross_entropy(x: Tensor) -> Tensor:
    """x with the loss and the gradient added: both are operators outside of the tape."""
    labels, logits = from_numpy(LABELS), autograd.detached(x)
    with autograd.no_grad():
        maximum, total, target_logit = kernels.softmax_statistics(logits, labels)
        added = kernels.cross_entropy_addends(maximum, maximum, total, target_logit)
        loss = kernels.cross_entropy_loss(added, maximum)
        gradient = kernels.cross_entropy_gradient(logits, maximum, added, labels, 0, ops.ones_like(loss))
    return x + gradient + kernels.cast(loss.expand_dims(-1), x.dtype)


CASES = {
    "linear": (linear, (X, normal(10, 8), ROW)),
    "linear without bias": (linear, (X, normal(10, 8))),
    "layer norm": (lambda x, w, b: kernels.layer_norm(x, w, b, 1e-5), (X, normal(8), normal(8, seed=1))),
    "rms norm": (lambda x, w: kernels.rms_norm(x, w, 1e-5), (X, normal(8))),
    "rms norm less one": (lambda x, w: kernels.rms_norm(x, w, 1e-5, True), (X, normal(8))),
    **{
        f"{name}{' bias' if bias else ''}": (
            lambda x, b=None, name=name: kernels.bias_activation(x, b, name),
            (WIDE, ROW) if bias else (WIDE,),
        )
        for name in ("gelu_tanh", "gelu_erf", "silu", "relu", "squared_relu", "swiglu", "geglu_erf")
        for bias in (False, True)
    },
    "relu of a NaN": (lambda x: kernels.bias_activation(x, None, "relu"), (SPECIAL,)),
    "squared relu of a NaN": (lambda x: kernels.bias_activation(x, None, "squared_relu"), (SPECIAL,)),
    "residual": (lambda x, b, r: kernels.bias_dropout_add(x, b, r), (X, normal(8), normal(7, 3, 8, seed=1))),
    "residual dropout": (
        lambda x, b, r: kernels.bias_dropout_add(x, b, r, 0.3, (5,)),
        (X, normal(8), normal(7, 3, 8, seed=1)),
    ),
    "dropout": (lambda x: kernels.dropout(x, 0.3, (5,)), (X,)),
    "split": (lambda x: kernels.split_qkv(x, 2, 2, 3), (normal(7, 3, 24),)),
    "rotary": (lambda x: kernels.rotary(x, tensor(ANGLES), tensor(ANGLES[::-1])), (normal(7, 3, 5, 8),)),
    "rotary neighbours": (lambda x: kernels.rotary(x, tensor(ANGLES), tensor(-ANGLES), True), (normal(7, 3, 5, 8),)),
    "rotary behind": (
        lambda x: kernels.rotary(x, tensor(ANGLES), tensor(-ANGLES), False, 1),
        (normal(7, 3, 5, 8),),
    ),
    "causal": (attention(), HEADS),
    "full": (attention(causal=False), HEADS),
    "masked": (attention(mask=from_numpy(HIDDEN)), HEADS),
    "attention dropout": (attention(dropout_rate=0.3, dropout_key=(5,)), HEADS),
    "soft cap": (attention(form=ScoreForm(soft_cap=2.0)), HEADS),
    "alibi": (attention(form=ScoreForm(slopes=(0.5, 0.25, 0.125, 0.0625))), HEADS),
    "fork": (kernels.fork, (X,)),
    "cross entropy": (cross_entropy, (WIDE,)),
}


@pytest.fixture
def compiling(monkeypatch):
    """Every function is compiled at its first call."""
    monkeypatch.setattr(module, "CALLS_BEFORE_COMPILING", 1)
    monkeypatch.setattr(module, "MOST_COMPILED", 1000)  # whatever was compiled before in this process
    kernels.use("ops")
    module.use(True)
    yield
    module.use(False)


def fused_functions() -> list[jit_fuser]:
    return [
        thing for thing in gc.get_objects() if type(thing) is jit_fuser and thing.__module__.startswith("pynative.")
    ]


def bits(results: tuple[list[np.ndarray], list[np.ndarray]]) -> list[bytes]:
    return [array.tobytes() for arrays in results for array in arrays]


NARROW = [(name, dtype) for name in ("fork", "cross entropy") for dtype in (float16, bfloat16)]
"""The others are computed in float32 on a CPU."""


@pytest.mark.parametrize(("name", "dtype"), [*((name, float32) for name in CASES), *NARROW], ids=str)
def test_compiled_functions_give_the_same_bits(name, dtype, compiling):
    """Outputs and all gradients; the first run compiles, the second one uses what was compiled."""
    function, inputs = CASES[name]
    module.use(False)
    apart = bits(run_operator(function, inputs, dtype))
    module.use(True)
    compiled = [bits(run_operator(function, inputs, dtype)) for _ in range(3)]
    assert compiled == [apart] * 3


def test_every_function_has_a_case(compiling):
    """Of the cases above, run before: each of the operators' functions was compiled by one of them."""
    for function, inputs in CASES.values():
        run_operator(function, inputs)
    kernels.embedding(from_numpy(LABELS), tensor(normal(10, 8)))
    assert {
        f"{f.__module__}.{f.__name__}" for f in fused_functions() if not f.compiled and "test" not in f.__module__
    } == set()


@jit_fuser
def double_and_square(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return x * factor, ops.square(x)


def test_only_what_comes_often_is_compiled(compiling, monkeypatch):
    """By shape, type and constants; no more kinds than `MOST_COMPILED`, and what is counted is bounded."""
    monkeypatch.setattr(module, "CALLS_BEFORE_COMPILING", 3)
    monkeypatch.setattr(module, "MOST_COMPILED", 2)
    monkeypatch.setattr(module, "MOST_COUNTED", 5)
    fused = jit_fuser(double_and_square.function)
    for calls, compiled in enumerate((0, 0, 1, 1), start=1):
        fused(tensor(X), 2.0)
        assert len(fused.compiled) == compiled, calls
    for size in range(1, 20):
        fused(tensor(normal(size)), 2.0)
    assert len(fused.compiled) == 1 and len(fused.calls) <= 5
    for factor in (3.0, 4.0):
        for _ in range(4):
            np.testing.assert_array_equal(fused(tensor(X), factor)[0].asnumpy(), X * np.float32(factor))
    assert len(fused.compiled) == 2


def test_nothing_is_compiled_on_the_tape_or_when_switched_off(compiling):
    """A compiled function leaves no trace on the tape: its inputs would get no gradient."""
    fused = jit_fuser(double_and_square.function)
    x = autograd.leaf(tensor(X))
    for _ in range(3):
        with autograd.recording():
            doubled, _ = fused(x, 2.0)
        autograd.backward([doubled], [tensor(X)])
        np.testing.assert_array_equal(autograd.take_gradient(x).asnumpy(), 2 * X)
    module.use(False)
    fused(tensor(X), 2.0)
    assert not fused.compiled and not fused.calls


def test_a_compiled_function_reads_what_its_arguments_hold_now(compiling):
    """Weights change in place, by numpy and by operators; other tensors and parameters come; views have gaps."""
    fused = jit_fuser(double_and_square.function)
    weight = Parameter(tensor(X.copy()))
    fused(weight, 2.0)
    assert fused.compiled
    memory = weight.asnumpy()
    for step in range(3):
        memory[...] = X + step
        doubled, squared = fused(weight, 2.0)
        memory[...] = 0  # What was computed is done, not on its way.
        np.testing.assert_array_equal(doubled.asnumpy(), 2 * (X + np.float32(step)))
        np.testing.assert_array_equal(squared.asnumpy(), np.square(X + np.float32(step)))
    large = normal(300, 4000)
    memory = np.empty_like(large)
    weight = from_numpy(memory)
    fused(weight, 2.0)
    assert len(fused.compiled) == 2
    for _ in range(3):
        memory[...] = large
        _, squared = fused(weight, 2.0)
        memory[...] = 0
        np.testing.assert_array_equal(squared.asnumpy(), np.square(large))
    view = tensor(normal(7, 3, 16)).narrow(-1, 4, 8)
    np.testing.assert_array_equal(fused(view, 2.0)[0].asnumpy(), 2 * view.asnumpy())


def test_results_of_earlier_calls_stay(compiling):
    """Each call has memory of its own, as long as its results live."""
    fused = jit_fuser(double_and_square.function)
    results = [fused(tensor(np.full((7, 3), i, np.float32)), 2.0)[0] for i in range(20)]
    assert [float(result.asnumpy()[0, 0]) for result in results] == [2.0 * i for i in range(20)]


def test_kinds_of_one_function_come_without_a_warning(compiling, monkeypatch):
    """MindSpore warns of a function that another compiler compiles anew."""
    said: list[str] = []
    monkeypatch.setattr(api.logger, "warning", said.append)

    @jit_fuser
    def negated(x: Tensor) -> Tensor:
        return ops.neg(x)

    for size in (3, 4, 5):
        np.testing.assert_array_equal(negated(tensor(normal(size))).asnumpy(), -normal(size))
    assert len(negated.compiled) == 3 and not said


def test_tensors_without_entries_are_not_compiled(compiling):
    """MindSpore's compiler fails at a part of one."""

    @jit_fuser
    def part(x: Tensor) -> Tensor:
        return x.narrow(-1, 2, 4)

    for rows in (0, 3, 0):
        assert part(tensor(normal(rows, 8))).shape == (rows, 4)
    assert len(part.compiled) == 1
