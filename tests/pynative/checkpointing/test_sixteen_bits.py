"""Runs in 16 bits that stop and go on: float32 values of the weights, moments and the loss scaler's state."""

import numpy as np
import pytest

from tests.support.checkpoint_jobs import assert_same, saved, train
from tests.support.distributed import run

SIX_STEPS = "--lr-decay-iters 6 --lr-decay-style cosine --hidden-dropout 0.1 --lr 1e-2"
TYPES = {
    "bf16": "--bf16",
    "bf16 sums": "--bf16 --grad-reduce-in-bf16",
    # Overflows at first, then grows after two clean steps: the run stops in the middle of that.
    "fp16": "--fp16 --initial-loss-scale 16777216 --loss-scale-window 2 --hysteresis 1",
    "fp16 adaptive": "--fp16 --adaptive-loss-scale --initial-loss-scale 16777216 --min-scale-window 2",
    "fp16 deepspeed": "--fp16 --loss-scaler deepspeed --initial-loss-scale 16777216 --loss-scale-window 2",
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, kind):
    """3 steps and 3 more equal 6: losses, weights, their float32 values, moments, loss scale and schedule, to
    the bit."""
    flags = f"{SIX_STEPS} {TYPES[kind]}"
    whole = run(1, train, f"{flags} --train-iters 6")[0]
    run(1, train, f"{flags} --train-iters 3 --save {tmp_path}")
    resumed = run(1, train, f"{flags} --train-iters 6 --load {tmp_path}")[0]
    assert_same(resumed, whole)
    assert resumed.losses == whole.losses[3:] and resumed.scales == whole.scales[3:]
    if "fp16" in kind:
        assert len(set(whole.scales)) > 1 and whole.scales[3] != whole.scales[0], "the state must matter"


def test_the_float32_values_are_more_than_the_weights(tmp_path):
    """The checkpoint's float32 values are not just widened weights; otherwise the test above would pass with rounded
    ones."""
    outcome = run(1, train, f"{SIX_STEPS} --bf16 --train-iters 2")[0]
    masters = {name.removeprefix("main_param."): v for name, v in outcome.moments.items() if "main_param" in name}
    assert masters.keys() == outcome.weights.keys()
    assert any(np.abs(masters[name] - weight).max() > 0 for name, weight in outcome.weights.items())
    for name, weight in outcome.weights.items():
        np.testing.assert_allclose(weight, masters[name], rtol=2**-8, atol=1e-30)


def test_a_float32_run_goes_on_in_bf16(tmp_path):
    """A float32 checkpoint's weights become the bfloat16 run's float32 values, to the bit."""
    before = run(1, train, f"{SIX_STEPS} --train-iters 2 --save {tmp_path}")[0]
    after = run(1, train, f"{SIX_STEPS} --train-iters 2 --bf16 --load {tmp_path}", False)[0]
    for name, weight in before.weights.items():
        np.testing.assert_array_equal(after.moments[f"main_param.{name}"], weight)


@pytest.mark.parametrize(("first", "second"), [("--fp16", "--bf16"), ("--bf16", "--fp16")])
def test_from_one_16_bit_type_to_the_other(tmp_path, first, second):
    """fp16 <-> bf16: the float32 values are taken over, and the weights are those rounded once, not the other type's
    weights converted."""
    flags = f"{SIX_STEPS} --train-iters 2"
    run(1, train, f"{flags} {first} --save {tmp_path}")
    after = run(1, train, f"{flags} {second} --load {tmp_path}", False)[0]
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    exact = saved(tmp_path, f"main_param.{name}")
    np.testing.assert_array_equal(after.moments[f"main_param.{name}"], exact)
    np.testing.assert_array_equal(after.weights[name], _rounded(exact, second))


def _rounded(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "--fp16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
