"""Laws that every plan keeps, over drawn configurations. Set PLANNER_EXAMPLES for more of them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mapping.plan import plan_of
from parallel_core.planner import Plan, find_device
from parallel_core.planner.layouts import RECOMPUTE

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("PLANNER_EXAMPLES", "12"))
A_LITTLE = 1 + 1e-9


@st.composite
def jobs(draw: st.DrawFn) -> dict:
    """Sizes that go together."""
    tensor, pipeline, replicas = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2, 4), (1, 2, 4)))
    experts = draw(st.sampled_from((None, 8)))
    return {
        "tensor-model-parallel-size": tensor,
        "pipeline-model-parallel-size": pipeline,
        "world": tensor * pipeline * replicas,
        "num-layers": pipeline * draw(st.sampled_from((1, 2, 3))),
        "hidden-size": 128 * draw(st.sampled_from((4, 8, 16))),
        "num-attention-heads": 8,
        "seq-length": draw(st.sampled_from((512, 2048))),
        "micro-batch-size": draw(st.sampled_from((1, 2))),
        "micro-batches": draw(st.sampled_from((4, 8, 12))),
        "replicas": replicas,
        "more": " --swiglu" * draw(st.booleans())
        + " --sequence-parallel" * (tensor > 1)
        + " --use-distributed-optimizer" * draw(st.booleans())
        + " --normalization RMSNorm" * draw(st.booleans())
        + (f" --num-experts {experts} --moe-router-topk 2" if experts else ""),
        "device": draw(st.sampled_from(("A100", "B200", "Ascend-910B"))),
    }


def planned(job: dict, more: str = "", **changed: int) -> Plan:
    """The plan of a drawn job with some sizes changed."""
    sizes = {**job, **{name.replace("_", "-"): value for name, value in changed.items()}}
    batch = sizes["micro-batches"] * sizes["micro-batch-size"] * sizes["replicas"]
    others = ("world", "micro-batches", "replicas", "more", "device")
    flags = " ".join(f"--{name} {value}" for name, value in sizes.items() if name not in others)
    flags += f" --global-batch-size {batch} --max-position-embeddings 4096 --vocab-size 32000 --bf16 --train-iters 9"
    flags += f" --tokenizer-type NullTokenizer --mock-data --lr 1e-4 {sizes['more']} {more}"
    return plan_of(flags.split(), sizes["world"], sizes["device"])


def most(plan: Plan) -> float:
    """Bytes of the fullest stage."""
    return max(stage.total for stage in plan.memory)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(jobs())
def test_laws(job):
    """Ten of them, each said where it is checked."""
    plan = planned(job)
    step = plan.step
    assert all(size >= 0 for stage in plan.memory for size in stage.parts.values()), "no part of memory is negative"
    assert all(seconds >= 0 for seconds in step.parts.values()), "no part of time is negative"
    assert step.total == pytest.approx(sum(step.parts.values())), "parts of time add up"
    assert all(stage.low < stage.total < stage.high for stage in plan.memory) and step.low < step.total < step.high
    assert 0 < plan.mfu <= plan.hfu * A_LITTLE < 1, "more is computed than the model asks for, less than the peak"

    selective, full = (planned(job, " ".join(RECOMPUTE[name])) for name in ("selective", "full"))
    assert most(selective) <= most(plan) * A_LITTLE, "more recompute never needs more memory"
    assert step.total <= selective.step.total * A_LITTLE and step.total <= full.step.total * A_LITTLE, "nor less time"

    longer = planned(job, micro_batches=2 * job["micro-batches"])
    assert longer.step.bubble_fraction <= step.bubble_fraction * A_LITTLE + 1e-12, (
        "nor do more micro-batches bubble more"
    )
    assert longer.step.total > step.total, "but they take longer"
    wider = planned(job, micro_batch_size=2 * job["micro-batch-size"])
    assert most(wider) >= most(plan), "a larger micro-batch never needs less memory"
    deeper = planned(job, num_layers=2 * job["num-layers"])
    assert deeper.step.total > step.total and most(deeper) > most(plan), "more layers need more of both"
    more = planned(job, world=2 * job["world"], replicas=2 * job["replicas"])
    assert most(more) <= most(plan) * 1.001, "more replicas never need more memory on each"

    device = find_device(job["device"])
    peaks = {dtype: 2 * peak for dtype, peak in device.peak_flops.items()}
    faster = Plan(plan.config, replace(device, peak_flops=peaks, bandwidth=2 * device.bandwidth))
    assert faster.step.total <= step.total * A_LITTLE, "a faster device is never slower"
