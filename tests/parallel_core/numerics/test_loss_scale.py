"""Loss scalers: Megatron's as recorded, DeepSpeed's and MindFormers' adaptive one as documented."""

import json

import pytest

from parallel_core.numerics.loss_scale import (
    AdaptiveLossScaler,
    ConstantLossScaler,
    DeepSpeedLossScaler,
    DynamicLossScaler,
    windows,
)
from tests.support.assets import asset

CASES = json.loads(asset("golden/loss_scaler/loss_scaler.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_dynamic_scaler_is_megatrons(case):
    """Scale, growth tracker and hysteresis tracker after each step equal those recorded from Megatron's dynamic
    scaler."""
    names = {"initial_scale": "scale", "growth_interval": "window", "growth_factor": "factor"}
    arguments = {names.get(name, name): value for name, value in case["args"].items() if name != "backoff_factor"}
    scaler = DynamicLossScaler(**arguments)
    for found_inf, scale, _, growth, hysteresis in case["rows"]:
        scaler.update(bool(found_inf))
        assert (scaler.scale, scaler.growth_tracker, scaler.hysteresis_tracker) == (scale, growth, hysteresis)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((1000, 20), [20, 30, 40, 50, 100, 200, 500, 1000]),
        ((500, 20), [20, 30, 40, 50, 100, 200, 500]),
        ((1000, 50), [50, 100, 200, 500, 1000]),
        ((120, 20), [20, 120]),
        ((1000, 15), [15, 20, 27, 35, 42, 50, 100, 200, 500, 1000]),
    ],
)
def test_windows(limits, expected):
    """`windows(longest, shortest)` gives the adaptive scaler's documented list of windows: none below the shortest,
    none twice."""
    assert windows(*limits) == expected


def test_the_adaptive_trace():
    """The adaptive scaler by hand, from 2^16: it doubles after 20 clean steps, then after longer windows; three
    overflows in a row give window 1, from which three clean steps lead back to the first."""
    scaler, changes = AdaptiveLossScaler(2.0**16, 2, 20), {}
    for step in range(1, 271):
        before = scaler.scale
        scaler.update(overflow=False)
        if scaler.scale != before:
            changes[step] = (scaler.scale / before, scaler.window)
    assert changes == {
        20: (2, 20), 40: (2, 20), 60: (2, 30), 90: (2, 30), 120: (2, 30), 150: (2, 40),
        190: (2, 40), 230: (2, 40), 270: (2, 50),
    }  # fmt: skip
    highest = scaler.scale
    for _ in range(3):
        scaler.update(overflow=True)
    assert (scaler.scale, scaler.window) == (highest / 8, 1)
    for factor in (4, 2, 1):
        scaler.update(overflow=False)
        assert scaler.scale == highest / factor
    assert scaler.window == 20


def test_the_adaptive_scale_stays_at_one_or_above():
    """Repeated overflows bring the adaptive scale down to 1 and no further."""
    scaler = AdaptiveLossScaler(2.0, 2, 20)
    for _ in range(5):
        scaler.update(overflow=True)
    assert scaler.scale == 1.0


def test_an_overflow_never_raises_the_scale():
    """An adaptive scale below 1 stays as it is at an overflow."""
    scaler = AdaptiveLossScaler(0.5, 2, 20)
    scaler.update(overflow=True)
    assert scaler.scale == 0.5


def test_a_window_that_became_shorter_lets_the_scale_grow():
    """A dynamic scaler whose saved state has more clean steps than its window has now grows at the next clean one."""
    scaler = DynamicLossScaler(scale=4.0, window=10)
    scaler.load_state_dict({"kind": "dynamic", "scale": 4.0, "growth_tracker": 50, "hysteresis_tracker": 2})
    scaler.update(overflow=False)
    assert (scaler.scale, scaler.growth_tracker) == (8.0, 0)


def test_an_adaptive_window_that_is_none_of_the_list_starts_with_the_first():
    """A start window that is not in the list is replaced by the first, with a warning; a list that would be empty is
    refused."""
    with pytest.warns(UserWarning, match="not among"):
        assert AdaptiveLossScaler(1.0, 2, 33).window == 20
    with pytest.raises(ValueError, match="--max-scale-window 20"):
        AdaptiveLossScaler(1.0, 2, 20, max_window=20)


def test_deepspeed_grows_after_clean_windows_and_shrinks_without_hysteresis_left():
    """DeepSpeed's scaler with window 2 and hysteresis 2: the first overflow uses up the hysteresis, the second halves
    the scale; growth after a clean window restores it."""
    scaler = DeepSpeedLossScaler(scale=64.0, window=2, hysteresis=2)
    scales = []
    for overflow in (True, True, False, False, False, True, True, False):
        scaler.update(overflow)
        scales.append(scaler.scale)
    assert scales == [64, 32, 32, 32, 64, 64, 32, 32]


def test_deepspeeds_consecutive_hysteresis():
    """A clean step between two overflows restores the hysteresis with consecutive_hysteresis, so that neither shrinks
    the scale."""
    plain, consecutive = (DeepSpeedLossScaler(scale=64.0, consecutive_hysteresis=value) for value in (False, True))
    for overflow in (True, False, True):
        plain.update(overflow)
        consecutive.update(overflow)
    assert (plain.scale, consecutive.scale) == (32, 64)


@pytest.mark.parametrize(
    "make",
    [
        ConstantLossScaler, DynamicLossScaler, lambda: DeepSpeedLossScaler(window=3),
        lambda: AdaptiveLossScaler(2.0**16, 2, 20),
    ],
)  # fmt: skip
def test_a_scaler_goes_on_from_its_state(make):
    """Each scaler whose state was saved as JSON and loaded halfway ends as one that ran through."""
    straight, first = make(), make()
    overflows = [step % 7 == 3 for step in range(60)]
    for overflow in overflows[:30]:
        first.update(overflow)
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for overflow in overflows[30:]:
        second.update(overflow)
    for overflow in overflows:
        straight.update(overflow)
    assert second == straight


def test_of_another_scalers_state_the_scale_is_taken():
    """A scaler that loads another kind's state takes the scale alone; a constant scaler keeps its flag's scale."""
    other = AdaptiveLossScaler(2.0**7, 2, 20)
    dynamic, constant = DynamicLossScaler(scale=2.0, window=3), ConstantLossScaler(5.0)
    for scaler in (dynamic, constant):
        scaler.load_state_dict(other.state_dict())
    assert dynamic == DynamicLossScaler(scale=2.0**7, window=3) and constant.scale == 5.0


def test_settings_are_not_state():
    """A loaded state changes counters and scale, not settings such as the window; a level beyond the adaptive list
    becomes the last."""
    scaler = DynamicLossScaler(window=7)
    scaler.load_state_dict(DynamicLossScaler(window=1000, growth_tracker=5).state_dict())
    assert (scaler.window, scaler.growth_tracker) == (7, 5)
    adaptive = AdaptiveLossScaler(2.0**7, 2, 20, max_window=40)
    adaptive.load_state_dict(AdaptiveLossScaler(2.0**7, 2, 1000).state_dict())
    assert adaptive.window == 40
