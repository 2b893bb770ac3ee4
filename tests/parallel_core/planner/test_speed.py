"""Seconds of operations on a device whose operators were measured by their sizes, and of messages where ranks share a
node's cores."""

from dataclasses import replace

import pytest

from parallel_core.costs import StagePlan, reduction_bytes, update_bytes
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
    """Each launch, of which the gradient has two, takes as long as the FLOPs of `launch_flops` beside those of the
    heads."""
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


WAKING = {"waking": 0.2, "waking_most": 7e-3}


def pipeline_on(named: str, cores: int, more: str = "", *, stages: int = 2, **calibration: float) -> Plan:
    """A plan of a pipeline on a known device with so many cores a node, some of whose calibration is replaced."""
    changed = replace(find_device(named).calibration, **calibration)
    flags = f"--pipeline-model-parallel-size {stages} {more}"
    return plan_on(named, flags, stages, cores=cores, calibration=changed)


def test_a_stage_loses_time_after_it_has_waited():
    """A rank that has waited loses a part of that time, and no more than the most. Both stages of a pipeline on two
    cores compute longer for it, and the step is longer; stages with processors of their own, and those that share one
    core, which is never idle, lose nothing."""
    plain, waking = pipeline_on("CPU", 2), pipeline_on("CPU", 2, **WAKING)
    speed = waking.speed
    assert (speed.waking(0.0), speed.waking(0.002), speed.waking(3.0)) == (0.0, 0.0004, 7e-3)
    assert all(late > soon for soon, late in zip(plain.step.work, waking.step.work, strict=True))
    assert waking.step.total > plain.step.total
    for named, cores in (("A100", 0), ("CPU", 1)):
        assert pipeline_on(named, cores, **WAKING).step.parts == pipeline_on(named, cores).step.parts


@pytest.mark.parametrize("latency", [2e-5, 5e-3])
@pytest.mark.parametrize("batch", [4, 8])
def test_parts_of_a_pipeline_on_cores_are_its_timeline(batch, latency):
    """The work of the slowest stage, the bubble and exposed messages last as long as the timeline, also where stages
    wait for slow messages longer than for each other."""
    device = find_device("CPU")
    more = f"--pipeline-model-parallel-size 2 --global-batch-size {batch}"
    link = replace(device.inside, latency=latency)
    step = plan_on("CPU", more, 2, inside=link, calibration=replace(device.calibration, **WAKING)).step
    assert max(step.work) + step.parts["bubble"] + step.parts["pipeline"] == pytest.approx(step.timeline.length)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_few_micro_batches_on_cores_stand_for_all(monkeypatch, stages, schedule):
    """A step of 64 micro-batches takes within 1% as long as if each of them were simulated, and each doubling of the
    micro-batches makes the bubble's share smaller."""
    more = f"--num-layers {2 * stages} --pipeline-schedule {schedule} --global-batch-size"
    few = [pipeline_on("CPU", stages, f"{more} {batch}", stages=stages, **WAKING).step for batch in (16, 32, 64, 128)]
    monkeypatch.setattr("parallel_core.planner.step.SETTLES", 64)
    whole = pipeline_on("CPU", stages, f"{more} 128", stages=stages, **WAKING).step
    assert few[-1].total == pytest.approx(whole.total, rel=0.01)
    assert few[-1].work == pytest.approx(whole.work, rel=0.01)
    shares = [step.bubble_fraction for step in few]
    assert shares == sorted(shares, reverse=True) and shares[0] > shares[-1]


def test_reductions_in_each_micro_batch_sweep_the_gradients():
    """ZeRO 2 reduces a layer's gradients in each of two micro-batches: they are all read by the check, and a rank's
    half is read and written in the first, and read twice and written in the second; the passes on a CPU are longer by
    these bytes, and the update no longer checks them. ZeRO 1 reduces none so."""
    plans = {stage: plan_on("CPU", f"--zero-stage {stage}", 2) for stage in (1, 2)}
    stages: dict[int, StagePlan] = {stage: plan.stages[0] for stage, plan in plans.items()}
    slots = [span.size for _, kept in stages[2].residences for span in kept.gradient_slots.cells]
    assert reduction_bytes(stages[1]) == 0
    batches = stages[2].config.dataset_config.micro_batch_num
    assert batches == 2
    assert batches * reduction_bytes(stages[2]) == 4 * (2 * sum(slots) + (2 + 3) * sum(slots) // 2) > 0
    longer = plans[2].step.of_stage(0)["backward"] - plans[1].step.of_stage(0)["backward"]
    wanted = batches * reduction_bytes(stages[2]) / plans[2].speed.update_bytes_per_second
    assert longer == pytest.approx(wanted)
    assert update_bytes(stages[1]) - update_bytes(stages[2]) == 4 * sum(slots)


@pytest.mark.parametrize(
    ("flags", "sweeps", "item_size"),
    [
        ("", 1, 4),
        ("--no-check-for-nan-in-loss-and-grad", 0, 4),
        ("--fp16", 2, 2),
        ("--fp16 --ddp-average-in-collective", 0, 2),
        ("--bf16", 1, 4),
    ],
)
def test_gradients_are_swept_before_their_sum_as_the_flags_say(flags, sweeps, item_size):
    """Read once by the check, read and written by a loss scaler's average before the sum, or not at all."""
    stage = plan_on("CPU", f"{flags} --zero-stage 2", 2).stages[0]
    slots = sum(span.size for _, kept in stage.residences for span in kept.gradient_slots.cells)
    assert reduction_bytes(stage) == item_size * (sweeps * slots + (3 - 1 / 2) * slots / 2)


def test_a_ring_writes_its_ranks_scores_once():
    """A rank of a ring of two or four, with as many blocks, writes and reads a half or a quarter of the scores, where
    attention writes them: on an A100 without a fused operator."""
    elementwise = []
    for ring in (1, 2, 4):
        plan = plan_on("A100", f"--context-parallel-size {ring} --context-parallel-algo megatron_cp_algo", ring)
        ((operation, forward, backward), *_) = works(plan, "core_attention")
        found = [plan.speed.by_part([(operation, one)], {})["elementwise"] for one in (forward, backward)]
        assert found[0] > 0 and found[1] == pytest.approx(2 * found[0])
        elementwise.append(found[0])
    assert elementwise == pytest.approx([elementwise[0], elementwise[0] / 2, elementwise[0] / 4])


def test_no_expert_messages_hide_in_pairs_on_a_cpu():
    """Halves of a pair hide each other's expert messages on an A100, not where ranks share cores."""
    flags = (
        "--num-experts 4 --expert-model-parallel-size 2 --moe-router-topk 2 --pipeline-model-parallel-size 2 "
        "--pipeline-schedule combined-1f1b --overlap-moe-expert-parallel-comm"
    )
    a100, cpu = (plan_on(named, flags, 4).step.hidden for named in ("A100", "CPU"))
    assert a100["expert parallel"] > 0 and not cpu.get("expert parallel")
