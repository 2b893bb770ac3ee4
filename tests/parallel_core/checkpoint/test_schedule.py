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


@pytest.mark.parametrize(
    ("then", "now", "flags", "words"),
    [
        (state(10), state(20), "steps", "--lr-decay-iters, or --train-iters without it: the learning rate is scheduled "
         "over 20 steps by the flags, 10 steps in the checkpoint; add --override-opt_param-scheduler"),
        (state(10), state(10, 16), "steps", "over 10 steps of 16 samples by the flags, 10 steps of 8 samples in"),
        (state(10), state(20), "samples", "--lr-decay-samples, or --train-samples without it: the learning rate is "
         "scheduled over 160 samples by the flags, 80 samples in the checkpoint"),
        (state(10, wsd_decay_steps=16), state(10), "steps", "falls over the last none by the flags, 2 steps in"),
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
    """No error for the same schedule, for another one with --use-checkpoint-opt_param-scheduler, or for another length
    of a weight decay that does not grow."""
    steps, kept = (reading(FLAGS[name]).config for name in ("steps", "kept"))
    assert schedule_problems(state(10), state(10), steps) == schedule_problems(state(10), state(20), kept) == []
    assert schedule_problems(state(10), state(10, wd_incr_steps=1), steps) == []
