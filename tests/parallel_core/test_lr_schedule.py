"""Learning rate and weight decay against Megatron-Core's own scheduler."""

import json
import math

import pytest

from parallel_core.lr_schedule import OptimizerParamScheduler
from tests.support.assets import asset

CASES = json.loads(asset("golden/lr_schedule/lr_schedule.json").read_text())["cases"]


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_megatrons_curve(name):
    """125 steps, past the end of the decay, including a group with its own maximum and minimum."""
    case = CASES[name]
    arguments = {k: v for k, v in case["args"].items() if v is not None}
    scheduler = OptimizerParamScheduler(**arguments)
    for iteration, steps, lr, wd, _exempt, lr_of_group in case["rows"]:
        assert scheduler.num_steps == steps, iteration
        assert scheduler.get_lr() == pytest.approx(lr, rel=1e-12, abs=1e-18)
        assert scheduler.get_wd() == pytest.approx(wd, rel=1e-12, abs=1e-18)
        assert scheduler.get_lr(3e-4, 1e-5) == pytest.approx(lr_of_group, rel=1e-12, abs=1e-18)
        scheduler.step(case["increment"])


def test_a_logarithmic_warm_up_is_deepspeeds():
    """Its `WarmupLR`: min + (max - min) log(update + 1) / log(updates of the warm-up), then the maximum."""
    arguments = dict(lr_decay_steps=4, lr_decay_style="constant", start_wd=0.0, end_wd=0.0, wd_incr_steps=4)
    arguments |= dict(max_lr=1e-3, init_lr=1e-4, lr_warmup_style="log", lr_warmup_steps=80, lr_warmup_unit=8)
    scheduler = OptimizerParamScheduler(**arguments)
    for update in range(14):
        share = math.log(update + 1) / math.log(10) if update < 10 else 1.0
        assert scheduler.get_lr() == pytest.approx(1e-4 + 9e-4 * share, rel=1e-12)
        scheduler.step(8)


def test_a_checkpoint_continues_the_curve():
    """State saved and loaded gives the next value; with override the command line's schedule goes on from there."""
    arguments = dict(max_lr=1.0, lr_decay_steps=100, start_wd=0.1, end_wd=0.1, wd_incr_steps=100)
    first, second = OptimizerParamScheduler(**arguments), OptimizerParamScheduler(**arguments)
    first.step(30)
    second.load_state_dict(first.state_dict())
    assert second.get_lr() == first.get_lr() == pytest.approx(0.7)
    other = OptimizerParamScheduler(**{**arguments, "max_lr": 2.0})
    other.load_state_dict(first.state_dict(), override=True)
    assert other.get_lr() == pytest.approx(1.4)


def test_warm_up_longer_than_decay_is_refused():
    """The message names the flags."""
    with pytest.raises(ValueError, match="--lr-warmup"):
        OptimizerParamScheduler(max_lr=1, lr_decay_steps=10, lr_warmup_steps=10, start_wd=0, end_wd=0, wd_incr_steps=1)
