"""Loss scalers against their rules written a second time, over drawn runs of overflows, in each of which the state is
saved and loaded once."""

import json
import random
from collections.abc import Callable, Generator

import pytest

from parallel_core.numerics.loss_scale import (
    AdaptiveLossScaler,
    DeepSpeedLossScaler,
    DynamicLossScaler,
    LossScaler,
    windows,
)

Rule = Generator[float, bool, None]
"""A generator that is sent whether a step overflowed and gives the scale after it."""


def megatron(scale: float, smallest: float, factor: float, window: int, hysteresis: int) -> Rule:
    """Megatron's dynamic scaler: divided after `hysteresis` overflows, multiplied after `window` clean steps."""
    grown, left = 0, hysteresis
    overflow = yield scale
    while True:
        if overflow:
            grown, left = 0, left - 1
            scale = max(scale / factor, smallest) if left <= 0 else scale
        else:
            grown += 1
            if grown == window:
                grown, left, scale = 0, hysteresis, scale * factor
        overflow = yield scale


def deepspeed(scale: float, smallest: float, window: int, hysteresis: int, consecutive: bool) -> Rule:
    """DeepSpeed's scaler, with its hysteresis restored by growth or, if `consecutive`, by each clean step."""
    iteration, last, left = 0, -1, hysteresis
    overflow = yield scale
    while True:
        if overflow:
            if hysteresis == 1 or left == 1:
                scale = max(scale / 2, smallest)
            else:
                left -= 1
            last = iteration
        else:
            left = hysteresis if consecutive else left
            clean = iteration - last - 1
            if clean > 0 and clean % window == 0:
                left = left if consecutive else hysteresis
                scale *= 2
        iteration += 1
        overflow = yield scale


def adaptive(scale: float, factor: float, levels: list[int], level: int) -> Rule:
    """The adaptive scaler with windows `levels`, beginning at `level`; level 0 of the rule is an additional window of
    1."""
    levels = [1, *levels]
    level, iteration, last, up, down = level + 1, 1, 0, 0, 0
    overflow = yield scale
    while True:
        rise = levels[level] <= iteration - last
        scale = max(scale / factor, 1) if overflow else scale
        last = iteration if overflow or rise else last
        if rise and not overflow:
            scale, up, down = scale * factor, (up + 1) % 4, 0
        iteration += 1
        if up == 3 and level < len(levels) - 1:
            level, up = level + 1, 0
        if overflow:
            down = (down + 1) % 4
            if down == 3 and level > 1:
                level, up, down = 0, 0, 0
        overflow = yield scale


def of_megatron(chance: random.Random) -> tuple[Callable[[], LossScaler], Rule]:
    """(function that makes Megatron's scaler, its rule) with drawn settings."""
    factor, window, hysteresis = chance.choice([2.0, 4.0, 1.5]), chance.choice([1, 2, 7, 20]), chance.randint(1, 4)
    names = {"min_scale": 4.0, "factor": factor, "window": window, "hysteresis": hysteresis}
    return lambda: DynamicLossScaler(scale=2.0**16, **names), megatron(2.0**16, *names.values())


def of_deepspeed(chance: random.Random) -> tuple[Callable[[], LossScaler], Rule]:
    """(function that makes DeepSpeed's scaler, its rule) with drawn settings."""
    window, hysteresis, consecutive = chance.choice([1, 2, 7, 20]), chance.randint(1, 4), chance.random() < 0.5
    names = {"min_scale": 4.0, "window": window, "hysteresis": hysteresis, "consecutive_hysteresis": consecutive}
    return lambda: DeepSpeedLossScaler(scale=2.0**16, **names), deepspeed(2.0**16, *names.values())


def of_adaptive(chance: random.Random) -> tuple[Callable[[], LossScaler], Rule]:
    """(function that makes the adaptive scaler, its rule) with drawn settings."""
    shortest = chance.choice([1, 2, 5, 20])
    levels = windows(shortest + chance.choice([1, 10, 80]), shortest)
    level = chance.randrange(len(levels))
    return (
        lambda: AdaptiveLossScaler(2.0**16, 2, levels[level], levels[-1], shortest),
        adaptive(2.0**16, 2, levels, level),
    )


def overflows(chance: random.Random, steps: int) -> list[bool]:
    """Whether each step overflows: clean and bad stretches of up to 40 steps, and single steps between."""
    found: list[bool] = []
    while len(found) < steps:
        found += [chance.random() < chance.choice([0.0, 0.1, 1.0])] * chance.choice([1, 1, 2, 3, 5, 40])
    return found[:steps]


@pytest.mark.parametrize("draw", [of_megatron, of_deepspeed, of_adaptive])
def test_drawn_runs(draw):
    """The scale after each of 300 steps equals the rule's, in a hundred drawn runs for each kind of scaler."""
    for seed in range(100):
        chance = random.Random(seed)
        make, rule = draw(chance)
        scaler, saved_after = make(), chance.randrange(300)
        assert next(rule) == scaler.scale
        for step, overflow in enumerate(overflows(chance, 300)):
            if step == saved_after:
                state, scaler = json.loads(json.dumps(scaler.state_dict())), make()
                scaler.load_state_dict(state)
            scaler.update(overflow)
            assert scaler.scale == rule.send(overflow), (seed, step)
