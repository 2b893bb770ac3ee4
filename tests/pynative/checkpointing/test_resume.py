"""A run that is killed after some steps and started again is the run that was never killed, at every kind of layout.

All rows: `python -m pytest tests/pynative/checkpointing/test_resume.py -m exhaustive`.
"""

from itertools import product
from pathlib import Path

import pytest

from tests.support.checkpoint_jobs import ENDLESS, Outcome, assert_same, train
from tests.support.distributed import run

KILLED_AFTER = 3
BASE = "--lr-decay-style cosine --lr 1e-2 --hidden-dropout 0.1 --attention-dropout 0.1"
STEPS = "--train-iters 4 --lr-decay-iters 7"
STEPS_OF_A_SCALE = "--train-iters 5 --lr-decay-iters 7"
"""Steps of fp16 rows, in which the loss scale grows again behind the kill."""
SAMPLES = "--train-samples 28 --lr-decay-samples 40"
"""Flags of rows with a growing batch: steps of 4, 4, 8, 8 samples, and the last 4."""
SHARDED, TP2, PP2 = "--use-distributed-optimizer", "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
CP2, EP2 = "--context-parallel-size 2", "--expert-model-parallel-size 2"
LAYOUTS = {
    "dp2": (2, ""),
    "tp2": (2, TP2),
    "tp2 sp": (2, f"{TP2} --sequence-parallel"),
    "pp2 1f1b": (2, PP2),
    "pp2 interleaved": (2, f"{PP2} --virtual-pipeline-model-parallel-size 2"),
    "pp2 zb-h1 uneven": (2, f"{PP2} --pipeline-schedule zb-h1 --num-layer-list 1,3"),
    "cp2 ring": (2, f"{CP2} --context-parallel-algo megatron_cp_algo"),
    "cp2 ulysses": (2, f"{CP2} --context-parallel-algo ulysses_cp_algo"),
    "dp2 sharded": (2, f"{SHARDED} --overlap-grad-reduce --overlap-param-gather"),
    "dp2 zero 2": (2, "--zero-stage 2"),
    "dp2 zero 3": (2, "--zero-stage 3"),
    "dp4 sharded, twice": (4, f"{SHARDED} --num-distributed-optimizer-instances 2 --micro-batch-size 1"),
    "tp2 sp dp2 sharded": (4, f"{TP2} --sequence-parallel {SHARDED}"),
    "pp2 cp2": (4, f"{PP2} {CP2}"),
}
WITH_EXPERTS = {
    "ep2": (2, EP2),
    "ep2 etp2": (4, f"{EP2} --expert-tensor-parallel-size 2 --micro-batch-size 1"),
    "ep2 tp2 sp": (4, f"{EP2} {TP2} --sequence-parallel --expert-tensor-parallel-size 1"),
    "ep2 pp2": (4, f"{EP2} {PP2}"),
    "ep2 sharded": (2, f"{EP2} {SHARDED}"),
}
PRECISIONS = {
    "float32": "",
    "bf16": "--bf16",
    # The first steps overflow, and hysteresis uses them up; then the scale grows, one clean step before the kill.
    "fp16": "--fp16 --initial-loss-scale 16777216 --loss-scale-window 2 --hysteresis 2",
}
MODELS = {
    "gpt": "--num-layers 4",
    "llama": "--num-layers 4 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2",
    "growing batch": "--num-layers 4 --global-batch-size 8 --rampup-batch-size 4 4 20",
    "adapters": "--num-layers 4 --lora-r 4 --lora-dropout 0.1 --lora-target-modules linear_qkv linear_fc1 linear_fc2",
    "muon": "--num-layers 4 --optimizer muon --muon-nesterov",
    "mtp": "--num-layers 4 --mtp-num-layers 1 --position-embedding-type rope --untie-embeddings-and-output-weights",
}
EXPERTS = (
    "--num-layers 4 --swiglu --num-experts 4 --moe-ffn-hidden-size 24 --moe-grouped-gemm --disable-bias-linear "
    "--moe-token-dispatcher-type alltoall --moe-aux-loss-coeff 1e-2 --untie-embeddings-and-output-weights"
)
MODELS_WITH_EXPERTS = {
    "experts": EXPERTS,
    "expert bias": f"{EXPERTS} --moe-router-enable-expert-bias --moe-router-score-function sigmoid "
    "--moe-router-load-balancing-type none",
    "hot experts": f"{EXPERTS} --hot-expert-num 2 --hot-expert-update-step 2",
}
ROWS = [
    ("dp2", "growing batch", "bf16"),
    ("tp2 sp", "llama", "fp16"),
    ("pp2 1f1b", "mtp", "bf16"),
    ("pp2 interleaved", "gpt", "fp16"),
    ("pp2 zb-h1 uneven", "llama", "bf16"),
    ("cp2 ring", "gpt", "bf16"),
    ("dp2 zero 2", "muon", "bf16"),
    ("dp2 zero 3", "llama", "fp16"),
    ("tp2 sp", "adapters", "bf16"),
    ("dp2 sharded", "gpt", "fp16"),
    ("ep2", "expert bias", "bf16"),
    ("ep2 etp2", "experts", "float32"),
    ("ep2 sharded", "hot experts", "bf16"),
]
"""(layout, model, precision): each value of each axis at least once, `-m exhaustive` has more."""


def train_twice(backend, flags: str, directory: Path) -> tuple[Outcome, Outcome]:
    """Outcomes of a run that saves on its way, and of one that goes on from that checkpoint to the end."""
    interval = f"--save {directory} --save-interval {KILLED_AFTER}"
    whole = train(backend, f"{flags} {interval}", base=ENDLESS)
    return whole, train(backend, f"{flags} --load {directory} --ckpt-step {KILLED_AFTER}", base=ENDLESS)


def check(layout: str, model: str, precision: str, directory: Path) -> None:
    world, placed = (LAYOUTS | WITH_EXPERTS)[layout]
    length = SAMPLES if model == "growing batch" else STEPS_OF_A_SCALE if precision == "fp16" else STEPS
    flags = f"{BASE} {length} {(MODELS | MODELS_WITH_EXPERTS)[model]} {PRECISIONS[precision]} {placed}"
    for rank, (whole, resumed) in enumerate(run(world, train_twice, flags, directory)):
        assert len(whole.losses) > KILLED_AFTER
        assert resumed.losses == whole.losses[KILLED_AFTER:] and resumed.scales == whole.scales[KILLED_AFTER:]
        if rank == 0:
            assert_same(resumed, whole)
        if precision == "fp16":
            assert len(set(whole.scales)) > 1, "the scaler's state must matter"


@pytest.mark.parametrize("row", ROWS, ids=", ".join)
def test_a_run_goes_on_to_the_bit(tmp_path, row):
    """Losses, weights, optimizer states, loss scale, schedule and place in the data equal the uninterrupted run's;
    dropout is on."""
    check(*row, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "row",
    [*product(LAYOUTS, MODELS, PRECISIONS), *product(WITH_EXPERTS, MODELS_WITH_EXPERTS, PRECISIONS)],
    ids=", ".join,
)
def test_every_row_goes_on_to_the_bit(tmp_path, row):
    """Each (layout, model, precision): losses and state of a resumed run are those of one never killed, to the bit."""
    check(*row, tmp_path)
