"""Plans of schedules with pairs of a forward and a backward (--overlap-moe-expert-parallel-comm): the messages of the
experts travel while the other one computes."""

from dataclasses import replace

import pytest

from mapping.plan import plan_of
from parallel_core.planner import Plan, find_device

SIZES = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --tokenizer-type NullTokenizer --mock-data "
    "--lr 1e-4 --train-iters 9 --bf16 --swiglu --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 "
    "--moe-token-dispatcher-type alltoall --untie-embeddings-and-output-weights "
    "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2"
)
OVERLAP, EXPERTS = "--overlap-moe-expert-parallel-comm", "expert parallel"


def planned(more: str = "") -> Plan:
    """The plan of a model with experts on four A100 (ep2, pp2), with `more` flags."""
    return plan_of(f"{SIZES} {more}".split(), 4, "A100")


@pytest.mark.parametrize("schedule", ["", "--num-layers-per-virtual-pipeline-stage 2", "--schedules-method dualpipev"])
def test_pairs_hide_most_of_the_exchange(schedule):
    """Pairs hide at least half of the experts' exchange; hidden and exposed time are the whole exchange, the step is
    shorter, and each stage's parts add up to it."""
    apart, beside = planned(schedule), planned(f"{schedule} {OVERLAP}")
    whole, exposed = apart.step.parts[EXPERTS], beside.step.parts[EXPERTS]
    assert 0 < exposed <= whole / 2
    assert exposed + beside.step.hidden[EXPERTS] == pytest.approx(whole)
    assert beside.step.total < apart.step.total
    for stage in range(2):
        assert sum(beside.step.of_stage(stage).values()) == pytest.approx(beside.step.total)


def test_messages_over_replicas_within_a_pass_count_beside_those_behind():
    """With --moe-router-load-balancing-type global_aux_loss the counts that replicas sum up in each forward take time
    as "data parallel" beside the gradients' sum, and stages with other layers still add up to the step."""
    plan = planned("--moe-layer-freq [0,0,1,1,1,1,1,1]")
    more = planned("--moe-layer-freq [0,0,1,1,1,1,1,1] --moe-router-load-balancing-type global_aux_loss "
                   "--moe-aux-loss-coeff 1e-2")  # fmt: skip
    assert more.step.parts["data parallel"] > plan.step.parts["data parallel"]
    for stage in range(2):
        assert sum(more.step.of_stage(stage).values()) == pytest.approx(more.step.total)


def test_a_pair_hides_no_more_than_it_computes():
    """Links that are a thousand times slower let less be hidden than the pair computes, and expose most of the
    exchange."""
    device = find_device("A100")
    slow = replace(device, inside=replace(device.inside, bandwidth=device.inside.bandwidth / 1000), messages={})
    step = Plan(planned(OVERLAP).config, slow).step
    computing = sum(step.parts[name] for name in ("products", "attention", "elementwise", "launches"))
    assert step.hidden[EXPERTS] < computing
    assert step.parts[EXPERTS] > step.hidden[EXPERTS]
