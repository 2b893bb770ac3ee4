"""Seconds of operations on a device whose operators were measured by their sizes, and of messages where ranks share a
node's cores."""

from dataclasses import replace

import pytest

from parallel_core.costs import StagePlan, reduction_bytes
from parallel_core.operations import ATTENTION, ATTENTION_GRADIENT, NORM, gradient_of
from parallel_core.planner import Plan, find_device
from tests.support.engine import TINY, config_of

LAYERS = f"{TINY} --num-layers 4 --global-batch-size 8"


def plan_on(named: str, more: str = "", ranks: int = 1, **tables: object) -> Plan:
    """A plan of four small layers on a known device, some of whose tables are replaced."""
    return Plan(config_of(f"{LAYERS} {more}", ranks), replace(find_device(named), **tables))


def works(plan: Plan, ending: str) -> list:
    """(operation, forward, backward) of the first stage's operations whose name ends so."""
    (stage,) = {id(one): one for one in plan.stages}.values()
    found = [one for chunk in stage.chunks for one in chunk.operations(stage.micro_batch)]
    return [(one, one.forward, one.backward) for one in found if one.name.endswith(ending)]


def test_a_measured_elementwise_operator_takes_a_multiple_of_its_bytes_seconds():
    """A norm takes the multiple that the table has for its bytes, between two points that between them; its gradient,
    which the table does not have, and the activation take the seconds of their bytes."""
    plain = plan_on("CPU").speed
    ((norm, forward, backward),) = works(plan_on("CPU"), "final_layernorm")
    size = forward.bytes
    timed = plan_on("CPU", by_size={NORM: ((size / 2, 5.0), (size * 1.5, 3.0))}).speed
    assert timed.seconds(norm, forward) == pytest.approx(4.0 * plain.seconds(norm, forward))
    assert timed.seconds(norm, backward) == plain.seconds(norm, backward)
    activation, forward, _ = works(plan_on("CPU"), "mlp.activation")[0]
    assert timed.seconds(activation, forward) == plain.seconds(activation, forward)
    assert gradient_of(NORM) not in timed.device.by_size


def test_a_launch_of_attention_takes_the_seconds_of_its_flops():
    """With half as many heads a rank's attention takes more than half of the time: each launch, of which the gradient
    has two, takes that of `launch_flops`."""
    tables = {"by_size": {ATTENTION: ((1.0, 1.0),), ATTENTION_GRADIENT: ((1.0, 1.0),)}}
    plain, timed = (plan_on("CPU", **tables, launch_flops=more).speed for more in ({}, {ATTENTION: 1e6}))
    both = plan_on("CPU", **tables, launch_flops={ATTENTION: 1e6, ATTENTION_GRADIENT: 3e6}).speed
    one, forward, backward = works(plan_on("CPU"), "core_attention")[0]
    of_flop = plain.seconds(one, forward) / forward.flops
    assert timed.seconds(one, forward) == pytest.approx(plain.seconds(one, forward) + 1e6 * of_flop)
    assert timed.seconds(one, backward) == plain.seconds(one, backward)
    assert both.seconds(one, backward) == pytest.approx(plain.seconds(one, backward) + 2 * 3e6 * of_flop)


def test_a_ring_computes_a_block_of_the_sequence_at_a_time():
    """On a ring of two attention has two launches a pass, four in the backward, each sized by half of the sequence; the
    FLOPs of a rank are half of those of the whole sequence."""
    (_, whole, _), *_ = works(plan_on("CPU"), "core_attention")
    (_, forward, backward), *_ = works(plan_on("CPU", "--context-parallel-size 2", 2), "core_attention")
    assert (whole.launches, forward.launches, backward.launches) == (1, 2, 4)
    assert forward.sized == (ATTENTION, whole.sized[1] / 2) and backward.sized[1] == whole.sized[1] / 2
    assert forward.flops == whole.flops / 2


@pytest.mark.parametrize(
    "more", ["--tensor-model-parallel-size 2 --sequence-parallel", "--overlap-grad-reduce --use-distributed-optimizer"]
)
def test_nothing_hides_where_ranks_move_messages_themselves(more):
    """Messages that an A100 hides behind computation take their time on a CPU, whose ranks share a node's cores."""
    a100, cpu = (plan_on(named, more, 2).step for named in ("A100", "CPU"))
    assert sum(a100.hidden.values()) > 0 and sum(cpu.hidden.values()) == 0
    messages = ("tensor parallel", "data parallel")
    assert sum(cpu.parts.get(part, 0.0) for part in messages) > 0


def test_reductions_in_each_micro_batch_sweep_the_gradients():
    """ZeRO 2 reduces a layer's gradients in each micro-batch: they are all read by the check, and a rank's half is read
    twice and written once as it is added; the passes on a CPU are longer by these bytes. ZeRO 1 reduces none so."""
    plans = {stage: plan_on("CPU", f"--zero-stage {stage}", 2) for stage in (1, 2)}
    stages: dict[int, StagePlan] = {stage: plan.stages[0] for stage, plan in plans.items()}
    slots = [span.size for _, kept in stages[2].residences for span in kept.gradient_slots.cells]
    assert reduction_bytes(stages[1]) == 0
    assert reduction_bytes(stages[2]) == 4 * (sum(slots) + 3 * sum(slots) // 2) > 0
    longer = plans[2].step.of_stage(0)["backward"] - plans[1].step.of_stage(0)["backward"]
    micro_batches = stages[2].config.dataset_config.micro_batch_num
    wanted = micro_batches * reduction_bytes(stages[2]) / plans[2].speed.update_bytes_per_second
    assert longer == pytest.approx(wanted)
