"""Plans of 10,240 and 102,400 ranks: made in under ten seconds of processor time, and right."""

from __future__ import annotations

import shlex
import time
from itertools import pairwise

import numpy as np
import pytest

from mapping.plan import plan_of
from parallel_core.checkpoint.layout import cover_problem
from parallel_core.costs import StagePlan
from parallel_core.costs.traffic import step_traffic
from parallel_core.planner import Plan
from parallel_core.schedules import GENERATORS, Placement, check, communicate
from parallel_core.sharding import SHARDS_OF_STATES, place
from parallel_core.topology import KINDS

pytestmark = pytest.mark.slow

SECONDS = 10.0
FLAGS = (
    "--num-layers 64 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--tokenizer-type NullTokenizer --vocab-size 31999 --mock-data --micro-batch-size 1 --train-iters 5 --lr 1e-4 "
    "--bf16 --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 16 "
    "--num-virtual-stages-per-pipeline-rank 2 --num-experts 16 --moe-router-topk 2 --expert-model-parallel-size 4 "
    "--use-distributed-optimizer"
)


def planned(world: int) -> Plan:
    """The plan of `FLAGS` (tp8, pp16, virtual stages, ep4) on `world` ranks, with 32 micro-batches for each replica."""
    return plan_of([*shlex.split(FLAGS), "--global-batch-size", str(world // 128 * 32)], world, "Ascend-910B")


@pytest.mark.parametrize("world", [10240, 102400])
def test_a_large_job_is_planned_in_seconds(world):
    """Memory, time, messages and all process groups are computed; each kind of group has each rank exactly once, those
    of embeddings at most once."""
    start = time.process_time()
    plan = planned(world)
    assert plan.step.total > 0 and len(plan.memory) == 16 and plan.traffic["data parallel"] > 0
    assert all(one.bytes >= 0 for stage in plan.stages for one in step_traffic(stage))
    for kind in KINDS:
        ranks = np.sort(plan.placement.topology.groups(kind), axis=None)
        assert (np.diff(ranks) > 0).all() and ("embedding" in kind or len(ranks) == world), kind
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("world", [10240, 102400])
def test_every_byte_is_owned_once(world):
    """The replicas of a stage (the first, a middle one, the last) together own each byte of its buffers once, and the
    boxes of the ranks that cut a weight (tp, expert-tp) cover it once."""
    plan, start = planned(world), time.process_time()
    for number in (0, 7, 15):
        stage = plan.stages[number]
        _buffers_are_owned(stage)
        for parameter in stage.trained:
            over = {cut.over for cut in parameter.shard.cuts}
            assert over <= {"tp", "expert-tp"}
            sizes = [stage.coordinates[kind][1] for kind in over] or [1]
            places = [
                place(parameter.shard, {**stage.coordinates, **{kind: (rank, sizes[0]) for kind in over}})
                for rank in range(sizes[0])
            ]
            assert cover_problem(parameter.shard.shape, [box for one in places for box in one.boxes]) is None
    assert time.process_time() - start < SECONDS


def _buffers_are_owned(stage: StagePlan) -> None:
    """Check that the spans that the replicas own cover each buffer of the stage without gap or overlap."""
    for buffer in stage.buffers:
        kind = SHARDS_OF_STATES[buffer.replicas]
        members = stage.coordinates[kind][1]
        owned = [span for rank in range(members) for span in buffer.owned_by({kind: (rank, members)}, sharded=True)]
        spans = sorted(span for span in owned if span.size)
        assert spans[0].start == 0 and spans[-1].stop == buffer.size
        assert all(one.stop == other.start for one, other in pairwise(spans))


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("gpipe", 1)])
def test_schedules_of_many_stages_end(schedule, chunks):
    """Schedules of 64 stages and 128 micro-batches pass the checker: no deadlock, each computation once, sends and
    receives in pairs."""
    placement = Placement(64, chunks)
    computes = GENERATORS[schedule](64, 128, chunks, None)
    assert max(check(communicate(computes, placement), 128, placement)) > 0
