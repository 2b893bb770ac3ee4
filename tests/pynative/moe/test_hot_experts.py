"""Hot experts: copies on every rank change nothing but where tokens are computed."""

import pytest

from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import check_layout

EXPERTS = (
    f"{TINY} {FAMILIES['llama']} --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 --moe-grouped-gemm "
    "--moe-aux-loss-coeff 0.01 --moe-token-dispatcher-type alltoall --global-batch-size 8"
)
EP2 = "--expert-model-parallel-size 2"
LAYOUTS = {
    "one hot": (2, f"{EP2} --hot-expert-num 1"),
    "three hot, of both ranks": (2, f"{EP2} --hot-expert-num 3"),
    "all hot, distributed optimizer": (2, f"{EP2} --hot-expert-num 4 --use-distributed-optimizer"),
    "all-gather": (2, f"{EP2} --hot-expert-num 2 --moe-token-dispatcher-type allgather"),
    "ep2 x tp2 + sp": (
        4,
        f"{EP2} --hot-expert-num 2 --tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 2",
    ),
    "pipeline": (4, f"{EP2} --hot-expert-num 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"),
    "capacity for all, padded": (
        2,
        f"{EP2} --hot-expert-num 2 --moe-expert-capacity-factor 8 --moe-pad-expert-input-to-capacity",
    ),
    "no expert parallelism": (2, "--hot-expert-num 2"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_one_process_without(layout):
    """Losses, every gradient, weights and moments after steps between which the hot experts change."""
    world, flags = LAYOUTS[layout]
    check_layout(EXPERTS, world, f"{flags} --hot-expert-update-step 1")


def test_biases_have_their_gradients_by_mindspores_operators():
    """The tape leaves those in `_grad` of the copies, where no buffer looks."""
    with_biases = EXPERTS.replace("--disable-bias-linear", "")
    check_layout(with_biases, 2, f"{EP2} --hot-expert-num 2 --hot-expert-update-step 1 --kernels ops")
