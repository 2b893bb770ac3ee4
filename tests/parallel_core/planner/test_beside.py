"""A plan beside a recorded step (`compare`): to which part a message's time belongs, and that the parts add up to the
step."""

from dataclasses import replace

import pytest

from parallel_core.costs import StagePlan
from parallel_core.planner import Plan
from parallel_core.planner.beside import compare, comparison_lines, measured_seconds
from parallel_core.planner.device import find_device
from parallel_core.planner.engine import engine_of
from parallel_core.topology import Topology
from parallel_core.trace import Kind, Span
from tests.support.engine import TINY, config_of

STEP = [
    Span(0, Kind.STEP, "step", 0.0, 20.0, 2),
    Span(0, Kind.DATA, "batch-generator", 0.0, 1.0, 2),
    Span(0, Kind.FORWARD, "forward 0.0", 1.0, 3.0, 2),
    Span(0, Kind.MOVING, "all_reduce of tp", 2.0, 0.5, 2, "tp"),
    Span(0, Kind.MOVING, "send of pp", 4.0, 0.5, 2, "pp"),
    Span(0, Kind.WAITING, "backward-recv", 4.5, 2.5, 2, "pp"),
    Span(0, Kind.BACKWARD, "backward 0.0", 7.0, 6.0, 2),
    Span(0, Kind.WEIGHT_GRADIENTS, "weight-gradients 0.0", 13.0, 1.0, 2),
    Span(0, Kind.OTHER, "loss-reduce", 14.0, 2.0, 2),
    Span(0, Kind.WAITING, "all_reduce of world", 14.5, 1.0, 2, "world"),
    Span(0, Kind.OTHER, "all-grads-sync", 16.0, 1.0, 2),
    Span(0, Kind.MOVING, "all_reduce of dp", 16.0, 1.0, 2, "dp"),
    Span(0, Kind.OPTIMIZER, "optimizer", 17.0, 2.0, 2),
]


def test_the_parts_are_the_step():
    """`measured_seconds` assigns each second of a recorded step to one part; waits for other stages are the bubble,
    whatever message they belong to."""
    sizes = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
    found = measured_seconds(STEP, Topology(world_size=8, **sizes))
    expected = {"forward": 2.5, "backward": 7.0, "tensor parallel": 0.5, "bubble": 4.0, "data parallel": 1.0}
    assert {name: seconds for name, seconds in found.items() if seconds} == pytest.approx(
        expected | {"optimizer": 2.0, "data": 1.0, "other": 2.0}
    )
    assert sum(found.values()) == pytest.approx(20.0)
    assert measured_seconds(STEP[1:], Topology(world_size=8)) == {}


@pytest.mark.parametrize(
    ("sizes", "inside", "part"),
    [
        ({"tensor_model_parallel_size": 2}, True, "tensor parallel"),
        ({"context_parallel_size": 2}, True, "context parallel"),
        ({"expert_model_parallel_size": 2}, True, "expert parallel"),
        ({"tensor_model_parallel_size": 2}, False, "data parallel"),
        ({}, True, "data parallel"),
    ],
)
def test_groups_of_the_same_ranks_are_told_apart(sizes, inside, part):
    """A message of the group `world` inside a forward belongs to tensor, context or expert parallelism, by the size
    that is above 1; outside, or if none is, it belongs to data parallelism."""
    message = Span(0, Kind.MOVING, "all_reduce of world", 1.0 if inside else 5.0, 0.5, 2, "world")
    step = [Span(0, Kind.STEP, "step", 0.0, 6.0, 2), Span(0, Kind.FORWARD, "forward 0.0", 0.0, 4.0, 2), message]
    assert measured_seconds(step, Topology(world_size=2, **sizes))[part] == pytest.approx(0.5)


@pytest.mark.parametrize("flags", ["--pipeline-model-parallel-size 2", "--zero-stage 3"])
def test_the_plan_of_a_stage_adds_up(flags):
    """Predicted parts add up to the step's time and to the stage's memory, on every stage; a part that was not measured
    prints a dash, and a total outside the range says so."""
    plan = Plan.of_run(config_of(f"{TINY} --num-layers 4 --global-batch-size 8 --bf16 {flags}", 2))
    for stage, memory in enumerate(plan.memory):
        found = compare(plan, 2, stage, STEP, {"weights": 5.0})
        assert found.seconds.predicted == pytest.approx(plan.step.total) and found.seconds.measured == pytest.approx(20)
        assert found.memory.predicted == pytest.approx(memory.total)
        assert found.memory.measured is None and found.seconds.is_within is False
        lines = [*comparison_lines(found)]
        assert (
            "step 2, ms" in lines[1] and "outside" in lines[1] and any("measured            -" in one for one in lines)
        )


def test_a_forward_beside_a_backward_is_one_part_of_the_step():
    """A step with pairs (combined 1F1B) is compared by one row "forward and backward", less the messages inside, which
    belong to their own part."""
    plan = Plan.of_run(config_of(f"{TINY} --num-experts 4 --expert-model-parallel-size 2", 2))
    step = [
        Span(0, Kind.STEP, "step", 0.0, 6.0, 2),
        Span(0, Kind.FORWARD, "forward 0.0", 0.0, 1.0, 2),
        Span(0, Kind.PAIR, "forward 1.0, backward 0.0", 1.0, 3.0, 2),
        Span(0, Kind.MOVING, "all_to_all of tp-ep", 2.0, 0.5, 2, "tp-ep"),
        Span(0, Kind.BACKWARD, "backward 1.0", 4.0, 2.0, 2),
    ]
    rows = {row.part: row for row in compare(plan, 2, 0, step, {}).seconds.rows}
    together, alone = rows["forward and backward"], plan.step.of_stage(0)
    assert together.measured == pytest.approx(5.5) and {"forward", "backward"}.isdisjoint(rows)
    assert together.predicted == pytest.approx(alone["forward"] + alone["backward"])


def test_a_weight_of_an_expert_has_one_buffer():
    """Buffers of weight gradients have the shapes of experts' shards under --expert-tensor-parallel-size alone, and
    those of dense ones under --tensor-model-parallel-size."""
    flags = f"{TINY} --tensor-model-parallel-size 2 --sequence-parallel --num-experts 2 --expert-tensor-parallel-size 1"
    plan = StagePlan(config_of(f"{flags} --moe-ffn-hidden-size 40", 2), 0)
    engine = replace(engine_of(find_device("A100"), plan.config), has_weight_gradients=True)
    h, f = 32, 40
    qkv, proj, experts = 3 * h * h // 2, h * h // 2, 2 * h * f
    assert engine.weight_gradient_buffers(plan.chunks, plan.micro_batch) == (qkv + proj + experts) * 4
