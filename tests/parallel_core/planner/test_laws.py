"""Laws that every plan must keep, checked on drawn legal configurations (200, or PLANNER_EXAMPLES)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mapping.plan import plan_of
from parallel_core.findings import ConfigError
from parallel_core.planner import Plan, find_device
from parallel_core.planner.layouts import RECOMPUTE, ZERO_STAGES

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("PLANNER_EXAMPLES", "200"))
A_LITTLE = 1 + 1e-9
CORES = str(Path(__file__).with_name("many_cores.yaml"))
"""A CPU that has a core for each rank of the drawn jobs, whose ranks are slower after they have waited."""

Job = dict


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A drawn job: sizes that fit together, kinds of blocks, schedule, ZeRO stage and device."""
    tensor, context, replicas = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 1, 2), (1, 2, 4)))
    pipeline = draw(st.sampled_from((1, 2, 4)))
    per_stage = draw(st.sampled_from((1, 2, 4)))
    experts = draw(st.sampled_from((None, None, 8)))
    more = [word for word in ("--swiglu", "--normalization RMSNorm", "--disable-bias-linear") if draw(st.booleans())]
    more += ["--group-query-attention --num-query-groups 4"] * draw(st.booleans())
    more += ["--sequence-parallel"] * (tensor > 1 and (bool(experts) or draw(st.booleans())))
    more += ["--untie-embeddings-and-output-weights"] * draw(st.booleans())
    more += [f"--num-experts {experts} --moe-router-topk 2"] if experts else []
    expert = draw(st.sampled_from((1, 2))) if experts and replicas > 1 else 1
    schedules = ["", "--pipeline-schedule gpipe", "--pipeline-schedule zb-h1"] if pipeline > 1 else [""]
    schedules += ["--num-virtual-stages-per-pipeline-rank 2"] * (pipeline > 1 and per_stage > 1)
    more += [draw(st.sampled_from(schedules)), " ".join(ZERO_STAGES[draw(st.sampled_from((0, 0, 1, 1, 2, 3)))])]
    return {
        "tensor-model-parallel-size": tensor,
        "pipeline-model-parallel-size": pipeline,
        "context-parallel-size": context,
        "expert-model-parallel-size": expert,
        "world": tensor * pipeline * context * replicas,
        "num-layers": pipeline * per_stage,
        "hidden-size": 128 * draw(st.sampled_from((4, 8, 16))),
        "num-attention-heads": 8,
        "seq-length": draw(st.sampled_from((512, 2048))),
        "micro-batch-size": draw(st.sampled_from((1, 2))),
        "micro-batches": draw(st.sampled_from((4, 8, 12))),
        "replicas": replicas,
        "more": " ".join(more),
        "device": draw(st.sampled_from(("A100", "B200", "Ascend-910B", CORES))),
    }


def planned(job: Job, more: str = "", **changed: int) -> Plan:
    """The plan of a drawn job with further flags and some sizes changed."""
    sizes = {**job, **{name.replace("_", "-"): value for name, value in changed.items()}}
    batch = sizes["micro-batches"] * sizes["micro-batch-size"] * sizes["replicas"]
    others = ("world", "micro-batches", "replicas", "more", "device")
    flags = " ".join(f"--{name} {value}" for name, value in sizes.items() if name not in others)
    flags += f" --global-batch-size {batch} --max-position-embeddings 8192 --vocab-size 32000 --bf16 --train-iters 9"
    flags += f" --tokenizer-type NullTokenizer --mock-data --lr 1e-4 {sizes['more']} {more}"
    return plan_of(flags.split(), sizes["world"], sizes["device"])


def legal(job: Job, more: str = "", **changed: int) -> Plan:
    """The plan as `planned` gives it; a draw that the config's rules refuse is left out."""
    try:
        return planned(job, more, **changed)
    except ConfigError:
        assume(False)
        raise


def most(plan: Plan) -> float:
    """Bytes of the stage that needs most memory."""
    return max(stage.total for stage in plan.memory)


def more_recompute_saves_memory_and_costs_time(plan: Plan, job: Job) -> None:
    """Recomputing core attention needs no more memory and no less time than recomputing nothing; whole layers take no
    less time either."""
    selective = legal(job, " ".join(RECOMPUTE["selective"]))
    assert most(selective) <= most(plan) * A_LITTLE and plan.step.total <= selective.step.total * A_LITTLE
    if "zb-h1" not in job["more"]:
        full = legal(job, " ".join(RECOMPUTE["full"]))
        assert plan.step.total <= full.step.total * A_LITTLE


def more_micro_batches_bubble_less(plan: Plan, job: Job) -> None:
    """Twice the micro-batches have no larger share of bubble, and a longer step."""
    longer = planned(job, micro_batches=2 * job["micro-batches"])
    assert longer.step.bubble_fraction <= plan.step.bubble_fraction * A_LITTLE + 1e-12
    assert longer.step.total > plan.step.total


def a_larger_micro_batch_needs_more(plan: Plan, job: Job) -> None:
    """Micro-batches of twice the size need no less memory and no less time."""
    wider = planned(job, micro_batch_size=2 * job["micro-batch-size"])
    assert most(wider) >= most(plan) and wider.step.total * A_LITTLE >= plan.step.total


def more_layers_need_more(plan: Plan, job: Job) -> None:
    """Twice the layers need more memory, time and floating-point operations."""
    deeper = planned(job, num_layers=2 * job["num-layers"])
    assert deeper.step.total > plan.step.total and most(deeper) > most(plan) and deeper.flops > plan.flops


def longer_sequences_need_more(plan: Plan, job: Job) -> None:
    """Sequences of twice the length need more memory and more than twice the operations, and no less time (launches may
    be all of it)."""
    longer = planned(job, seq_length=2 * job["seq-length"])
    assert most(longer) > most(plan) and longer.flops > 2 * plan.flops
    assert longer.step.total * A_LITTLE >= plan.step.total


def more_replicas_need_no_more_memory(plan: Plan, job: Job) -> None:
    """Twice the data-parallel replicas need no more memory on a rank, and train no fewer tokens a second."""
    more = planned(job, world=2 * job["world"], replicas=2 * job["replicas"])
    assert most(more) <= most(plan) * 1.001 and more.tokens_per_second > plan.tokens_per_second * 0.99


def more_sharding_needs_less_memory(plan: Plan, job: Job) -> None:
    """A higher ZeRO stage needs no more bytes of optimizer states."""
    bare = {**job, "more": job["more"].replace("--use-distributed-optimizer", "").partition("--zero-stage")[0]}
    plans = [legal(bare, " ".join(flags)) for flags in ZERO_STAGES.values()]
    for less, more in pairwise(plans):
        for before, after in zip(less.buffers, more.buffers, strict=True):
            assert after.optimizer_states <= before.optimizer_states * 1.01 + 4096


def a_faster_device_is_not_slower(plan: Plan, job: Job) -> None:
    """A device of twice the peak and bandwidth, or with faster links, takes no longer for a step."""
    device = find_device(job["device"])
    peaks = {dtype: 2 * peak for dtype, peak in device.peak_flops.items()}
    links = {name: replace(getattr(device, name), bandwidth=9e12) for name in ("inside", "between")}
    for faster in (replace(device, peak_flops=peaks, bandwidth=2 * device.bandwidth), replace(device, **links)):
        assert Plan(plan.config, faster).step.total <= plan.step.total * A_LITTLE


LAWS: tuple[Callable[[Plan, Job], None], ...] = (
    more_recompute_saves_memory_and_costs_time,
    more_micro_batches_bubble_less,
    a_larger_micro_batch_needs_more,
    more_layers_need_more,
    longer_sequences_need_more,
    more_replicas_need_no_more_memory,
    more_sharding_needs_less_memory,
    a_faster_device_is_not_slower,
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(jobs(), st.sampled_from(LAWS))
def test_laws(job, law):
    """Parts of memory and time are not negative and add up, on each stage of every plan, and 0 < MFU <= HFU < 1; and
    one drawn law holds."""
    plan = legal(job)
    step = plan.step
    for stage in plan.memory:
        assert min(stage.parts.values()) >= 0 and stage.total == pytest.approx(sum(stage.parts.values()))
        assert stage.low < stage.total < stage.high <= stage.needed
    assert min(step.parts.values()) >= 0 and step.total == pytest.approx(sum(step.parts.values()))
    for number in range(len(plan.stages)):
        assert sum(step.of_stage(number).values()) == pytest.approx(step.total)
    assert 0 < plan.mfu <= plan.hfu * A_LITTLE < 1
    law(plan, job)
