"""Learning rate and weight decay: against recorded curves of Megatron-Core's scheduler, and DeepSpeed's rule."""

import json
import math

import pytest

from parallel_core.numerics.lr_schedule import OptimizerParamScheduler
from tests.support.assets import asset

CASES = json.loads(asset("golden/lr_schedule/lr_schedule.json").read_text())["cases"]


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_megatrons_curve(name):
    """Learning rate, weight decay and consumed samples of 125 recorded steps are equal, past the end of the decay, and
    for a parameter group with its own maximum and minimum."""
    case = CASES[name]
    arguments = {k: v for k, v in case["args"].items() if v is not None}
    scheduler = OptimizerParamScheduler(**arguments)
    for iteration, steps, lr, wd, _exempt, lr_of_group in case["rows"]:
        assert scheduler.num_steps == steps, iteration
        assert scheduler.get_lr() == pytest.approx(lr, rel=1e-12, abs=1e-18)
        assert scheduler.get_wd() == pytest.approx(wd, rel=1e-12, abs=1e-18)
        assert scheduler.get_lr(3e-4, 1e-5) == pytest.approx(lr_of_group, rel=1e-12, abs=1e-18)
        scheduler.step(case["increment"])


LOW, HIGH, WARM_UP, TOTAL = 1e-4, 1e-3, 10, 25


def deepspeeds_rates(decays: bool, logarithmic: bool, updates: int) -> list[float]:
    """The learning rate of each update by DeepSpeed's WarmupLR or (`decays`) WarmupDecayLR: the scheduler sets the
    lowest rate when it is made, at batch -1, and after each update the next batch's."""
    rate, batch, rates = LOW, -1, []
    for _ in range(updates):
        rates.append(rate)
        batch += 1
        if batch < WARM_UP:
            share = math.log(batch + 1) / math.log(WARM_UP) if logarithmic else batch / WARM_UP
        else:
            share = max(0.0, (TOTAL - batch) / (TOTAL - WARM_UP)) if decays else 1.0
        rate = LOW + (HIGH - LOW) * share
    return rates


@pytest.mark.parametrize("decays", [False, True], ids=["WarmupLR", "WarmupDecayLR"])
@pytest.mark.parametrize("style", ["log", "linear"])
def test_with_a_delay_of_one_update_the_rates_are_deepspeeds(decays, style):
    """A schedule with lr_delay_steps of one update equals DeepSpeed's rates, past the end of the decay; the second
    update has the lowest rate once more."""
    arguments = dict(lr_decay_style="linear" if decays else "constant", lr_decay_steps=8 * TOTAL, lr_delay_steps=8)
    arguments |= dict(max_lr=HIGH, min_lr=LOW, init_lr=LOW, start_wd=0.0, end_wd=0.0, wd_incr_steps=4)
    arguments |= dict(lr_warmup_style=style, lr_warmup_steps=8 * WARM_UP, lr_warmup_unit=8)
    scheduler, rates = OptimizerParamScheduler(**arguments), []
    wanted = deepspeeds_rates(decays, style == "log", TOTAL + 5)
    assert wanted[:2] == [LOW, LOW] and wanted[2] > LOW and wanted[WARM_UP + 1] == HIGH
    for _ in wanted:
        rates.append(scheduler.get_lr())
        scheduler.step(8)
    assert rates == pytest.approx(wanted, rel=1e-12)


def test_a_checkpoint_continues_the_curve():
    """A scheduler that loads a state continues its curve; with `override` the new schedule goes on from the saved
    step."""
    arguments = dict(max_lr=1.0, lr_decay_steps=100, start_wd=0.1, end_wd=0.1, wd_incr_steps=100)
    first, second = OptimizerParamScheduler(**arguments), OptimizerParamScheduler(**arguments)
    first.step(30)
    second.load_state_dict(first.state_dict())
    assert second.get_lr() == first.get_lr() == pytest.approx(0.7)
    other = OptimizerParamScheduler(**{**arguments, "max_lr": 2.0})
    other.load_state_dict(first.state_dict(), override=True)
    assert other.get_lr() == pytest.approx(1.4)


def test_warm_up_longer_than_decay_is_refused():
    """A warm-up as long as the decay is an error with the flag --lr-warmup."""
    with pytest.raises(ValueError, match="--lr-warmup"):
        OptimizerParamScheduler(max_lr=1, lr_decay_steps=10, lr_warmup_steps=10, start_wd=0, end_wd=0, wd_incr_steps=1)
