"""Checkpoints of models with experts: any number of expert-parallel ranks takes over what any other saved."""

import pytest

from tests.support.checkpoint_jobs import check_taken_over

EP2, SHARDED = "--expert-model-parallel-size 2", "--use-distributed-optimizer"
SP2 = "--tensor-model-parallel-size 2 --sequence-parallel"
LAYOUTS = {
    "one": (1, ""),
    "ep2": (2, EP2),
    "ep2, sharded": (4, f"{EP2} {SHARDED} --micro-batch-size 1"),
    "ep2 etp2": (4, f"{EP2} --expert-tensor-parallel-size 2 --micro-batch-size 1"),
    "ep2 tp2, whole experts": (4, f"{EP2} {SP2} --expert-tensor-parallel-size 1"),
    "ep2 pp2": (4, f"{EP2} --pipeline-model-parallel-size 2"),
    "ep4": (4, "--expert-model-parallel-size 4 --micro-batch-size 1"),
}
LOADED_AT = {
    "ep2, sharded": ("one", "ep2 etp2", "ep2 tp2, whole experts", "ep4"),
    "ep2 etp2": ("ep2 pp2", "ep2, sharded"),
    "one": ("ep2",),
}
"""Layout of the run that saves -> layouts that take over."""
EXPERTS = (
    "--swiglu --num-experts 4 --moe-ffn-hidden-size 24 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--disable-bias-linear --untie-embeddings-and-output-weights --lr-decay-iters 6"
)


@pytest.mark.parametrize("layout", LOADED_AT)
def test_any_layout_takes_over_what_any_other_saved(tmp_path, layout):
    """Weights and moments of every expert, found by its global number, are the saving run's to the bit."""
    others = [LAYOUTS[other] for other in LOADED_AT[layout]]
    before = check_taken_over(LAYOUTS[layout], others, f"{EXPERTS} --bf16", tmp_path)
    experts = {name for name in before.weights if ".local_experts." in name}
    assert len(experts) == 2 * 4 * 2
