"""Errors about a learning-rate schedule that is not the loaded checkpoint's: their words."""

import pytest

from parallel_core.checkpoint.schedule import schedule_problems
from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from tests.support.mapping.lines import reading

FLAGS = {
    "steps": "",
    "samples": "~train-iters --train-samples 80",
    "kept": "--use-checkpoint-opt_param-scheduler",
}


def state(steps: int, batch: int = 8, **more: object) -> dict:
    """The state of a scheduler over `steps` steps of `batch` samples, after one step; it counts in samples."""
    made = OptimizerParamScheduler(
        max_lr=1e-3, lr_decay_steps=steps * batch, lr_warmup_unit=batch, start_wd=0.1, end_wd=0.1,
        wd_incr_steps=steps * batch, num_steps=batch,
    )  # fmt: skip
    return vars(made) | more


WSD = state(10, lr_decay_style="WSD", wsd_decay_steps=16)


@pytest.mark.parametrize(
    ("then", "now", "flags", "words"),
    [
        (state(10), state(20), "steps", "--lr-decay-iters, or --train-iters without it: the learning rate is scheduled "
         "over 20 steps by the flags, 10 steps in the checkpoint; add --override-opt_param-scheduler"),
        (state(10), state(10, 16), "steps", "over 10 steps of 16 samples by the flags, 10 steps of 8 samples in"),
        (state(10), state(20), "samples", "--lr-decay-samples, or --train-samples without it: the learning rate is "
         "scheduled over 160 samples by the flags, 80 samples in the checkpoint"),
        (WSD, WSD | {"wsd_decay_steps": 32}, "steps", "falls over the last 4 steps by the flags, 2 steps in the"),
        (WSD, WSD | {"lr_wsd_decay_style": "cosine"}, "steps", "--lr-wsd-decay-style: lr_wsd_decay_style is cosine by"),
        (state(10, lr_warmup_unit=None), state(20), "steps", "over 20 steps by the flags, 10 steps in"),
        (state(10, max_lr=2e-3), state(10), "steps", "--lr: max_lr is 0.001 by the flags and 0.002 in the checkpoint"),
    ],
)  # fmt: skip
def test_a_difference_is_said_once(then, now, flags, words):
    """A difference of schedules is one error with flag, both values and fix; lengths are in steps, with the samples of
    a step where these differ, or in samples where the user gave samples."""
    (problem,) = schedule_problems(then, now, reading(FLAGS[flags]).config)
    assert words in problem


def test_what_is_told_nothing():
    """No error for the same schedule, or for another one with --use-checkpoint-opt_param-scheduler."""
    steps, kept = (reading(FLAGS[name]).config for name in ("steps", "kept"))
    assert schedule_problems(state(10), state(10), steps) == schedule_problems(state(10), state(20), kept) == []


CONSTANT = {"lr_decay_style": "constant"}


@pytest.mark.parametrize(
    ("both", "one"),
    [
        ({}, {"wd_incr_steps": 1, "start_wd": 0.5}),
        ({}, {"lr_wsd_decay_style": "cosine", "wsd_decay_steps": 8}),
        ({}, {"init_lr": 1e-5, "lr_warmup_style": "log"}),
        (CONSTANT, {"min_lr": 1e-5, "decoupled_min_lr": 1e-5, "lr_decay_steps": 800, "lr_delay_steps": 8}),
    ],
)
def test_what_neither_schedule_reads_is_not_compared(both, one):
    """A setting of a style that neither the flags nor the checkpoint have, of the growth of a weight decay that stays,
    of a missing warm-up, or of the fall of a constant rate may differ: both schedules give the same rates."""
    config = reading(FLAGS["steps"]).config
    first, second = state(10, **both), state(10, **both, **one)
    assert schedule_problems(first, second, config) == schedule_problems(second, first, config) == []
    for samples in range(0, 120, 8):
        rates = []
        for each in (first, second):
            scheduler = OptimizerParamScheduler(**each | {"num_steps": samples})
            rates.append(scheduler.rates())
        assert rates[0] == rates[1]


@pytest.mark.parametrize("name", ["init_lr", "lr_delay_steps", "min_lr", "lr_decay_steps", "start_wd", "wd_incr_steps"])
def test_what_one_schedule_reads_is_compared(name):
    """With warm-up, decay and a growing weight decay each of their settings is compared."""
    config = reading(FLAGS["steps"]).config
    first = state(10, lr_warmup_steps=8, lr_decay_style="cosine", wd_incr_style="linear")
    (problem,) = schedule_problems(first, first | {name: first[name] + 1}, config)
    assert "by the flags" in problem and "in the checkpoint" in problem
