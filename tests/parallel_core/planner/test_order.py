"""The times by which a run orders its pipeline's computations."""

import pytest

from parallel_core.costs.activations import enough_micro_batches
from parallel_core.planner import Plan
from parallel_core.planner.order import times_of_run
from parallel_core.schedules import check, communicate, order
from tests.support.engine import TINY, config_of

PP4 = f"{TINY} --num-layers 8 --global-batch-size 16 --pipeline-model-parallel-size 4"
DEVICE = "--plan-device Ascend-910B"


def entries_of(config, times):
    """As many micro-batches as a plan simulates."""
    parallel = config.parallel_config
    return order(parallel.schedule_name, parallel.placement, enough_micro_batches(config), times=times)


@pytest.mark.parametrize("schedule", ["zb-1p", "v-half"])
def test_a_named_device_orders_a_run(schedule):
    """Two ranks make the same order of its plan's times, another than equal times give, and the plan predicts that
    one."""
    config = config_of(f"{PP4} --pipeline-schedule {schedule} --untie-embeddings-and-output-weights {DEVICE}", 4)
    one, other = (entries_of(config, times_of_run(config)) for _ in range(2))
    assert one == other != entries_of(config, None)
    placement = config.parallel_config.placement
    check(communicate(one, placement), enough_micro_batches(config), placement)
    predicted = Plan.of_run(config).step.timeline
    assert [[span.action for span in own] for own in predicted.spans] == one


@pytest.mark.parametrize("flags", ["--pipeline-schedule zb-1p", f"--pipeline-schedule zb-h1 {DEVICE}", DEVICE])
def test_otherwise_times_are_equal(flags):
    """Without a device there is nothing to plan by, and most schedules take no times."""
    assert times_of_run(config_of(f"{PP4} {flags}", 4)) is None
