"""Every pipeline schedule trains as one process does: losses, and every gradient of the first step."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.layouts import ONE_STEP, STEPS, check_layout, reference, train
from tests.support.pipelines import BASE, LONG, SCHEDULES, pipeline

MODELS = {
    "tied, dropout": "--attention-dropout 0.2 --hidden-dropout 0.1",
    "untied, per token": "--untie-embeddings-and-output-weights --calculate-per-token-loss",
    "layers that do nothing": "--noop-layers 0,5 --hidden-dropout 0.1",
}
"""Name -> flags. In all of them the loss mask differs between micro-batches."""

SPLITS = [
    ("1f1b", 2, "--num-layer-list 5,9"),
    ("zb-h1", 4, "--num-layer-list 1,4,5,4"),
    ("gpipe", 4, "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3"),
    ("zb-h1", 2, "--standalone-embedding-stage"),
    ("1f1b", 4, "--standalone-embedding-stage"),
    ("interleaved", 2, "--num-layer-list [[2,4],[5,3]]"),
    ("interleaved", 4, "--num-layer-list [[1,1,3,2],[2,1,1,3]]"),
    ("1f1b", 4, "--num-layer-list 0,7,7,0"),
    ("interleaved", 2, "--num-layer-list [[0,7],[7,0]]"),
    ("interleaved", 2, "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"),
]


KINDS = ["1f1b", "gpipe", "zb-h1", "interleaved"]
ROWS = [(model, schedule, 2) for model in MODELS for schedule in KINDS]
ROWS += [(list(MODELS)[i % len(MODELS)], schedule, 4) for i, schedule in enumerate(KINDS)]
ROWS += [("tied, dropout", "zb-h2", 2), ("tied, dropout", "zb-2p", 4), ("untied, per token", "zb-1p", 4)]


def check_schedule(model: str, schedule: str, stages: int, more: str = "") -> None:
    long = LONG if stages == 4 else ""
    check_layout(f"{BASE} {long} {MODELS[model]}", stages, pipeline(schedule, stages, more))


@pytest.mark.parametrize(("model", "schedule", "stages"), ROWS)
def test_a_schedule_equals_one_process(model, schedule, stages):
    """Would fail on an average in the wrong place, another micro-batch's dropout mask, or a gradient added twice or
    never; on four stages the models take turns."""
    check_schedule(model, schedule, stages)


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_four_stages_of_every_model(model, schedule):
    """Each schedule of KINDS on four stages trains each of MODELS as one process does."""
    check_schedule(model, schedule, 4)


@pytest.mark.parametrize(
    ("schedule", "stages", "more"),
    [
        ("zb-v", 4, ""),
        ("v-half", 4, ""),
        ("v-min", 2, "--plan-device Ascend-910B"),
        ("zb-v", 2, "--num-layer-list [[1,3],[3,1]]"),
        ("zb-v", 2, "--kernels ops"),
        ("dualpipev", 2, "--num-layer-list [[1,3],[3,1]]"),
        ("dualpipev", 4, ""),
    ],
)
def test_a_folded_pipeline_equals_one_process(schedule, stages, more):
    """Folded pipelines: a stage sends to itself where the pipeline folds, and the first has both ends of the model;
    some backwards put weight gradients off, others do not; one row's order is made by a plan's times."""
    long = LONG if stages == 4 else ""
    flags = f"{BASE} {long} {MODELS['untied, per token']} --hidden-dropout 0.1"
    check_layout(flags, stages, pipeline(schedule, stages, more))


def test_weight_gradients_of_their_own_change_no_bit():
    """ZB-H1 on one stage, which differs from 1F1B in when weight gradients are computed only, has 1F1B's results to the
    bit."""
    flags = f"{BASE} {MODELS['tied, dropout']}"
    (found,) = run(1, train, f"{flags} {SCHEDULES['zb-h1']} {STEPS}")
    np.testing.assert_equal(found, reference(flags))


@pytest.mark.parametrize(("schedule", "stages", "split"), SPLITS)
def test_an_uneven_split(schedule, stages, split):
    """Uneven layers a stage: by a list for stages or for chunks, fewer at the ends, embedding or output layer on a
    stage alone."""
    layout = pipeline(schedule, stages, split)
    check_layout(f"{BASE} --num-layers 14 {MODELS['tied, dropout']}", stages, layout, steps=ONE_STEP)


@pytest.mark.parametrize(
    ("schedule", "flags"),
    [
        ("zb-h1", "--no-overlap-p2p-communication"),
        ("interleaved", "--no-overlap-p2p-communication"),
        ("zb-h1", "--kernels ops"),
        ("interleaved", f"--microbatch-group-size-per-virtual-pipeline-stage 4 {LONG}"),
        ("1f1b", "--num-layers-per-virtual-pipeline-stage 1"),
    ],
)
def test_other_ways_to_run(schedule, flags):
    """Without overlapped exchanges, with --kernels ops, interleaving in groups of 4, and four chunks a stage."""
    long = LONG if LONG in flags else ""
    check_layout(f"{BASE} {long} {MODELS['tied, dropout']}", 2, pipeline(schedule, 2, flags))
