"""The parts of a step in which ranks are compared."""

from types import SimpleNamespace

import pytest

from parallel_core.schedules.actions import Backward, Forward, Pair, WeightGrad
from pynative.pipeline_parallel.runner import Plan, run
from pynative.timers import Timers
from pynative.training.callbacks.straggler import PARTS


@pytest.mark.parametrize("action", [Forward(0), Backward(0), WeightGrad(0), Pair(Forward(1), Backward(0))])
def test_every_computation_of_a_schedule_is_compared(action):
    """The timer around each kind of computation is among the compared parts: combined 1F1B's pairs, too."""
    timers, plan = Timers(idle=lambda: 0.0), Plan((action,), frozenset(), frozenset(), frozenset(), {})
    run(plan, lambda action, inputs: [None] * len(inputs), SimpleNamespace(finish=lambda: None), timers)
    assert len(timers.busy) == 1 and set(timers.busy) <= set(PARTS)
