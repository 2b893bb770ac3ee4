"""Whole models with experts on every axis against one process: losses, every gradient, weights and moments.

Latent attention and experts under context parallelism, several balancing losses at once, a step's global load.
"""

import pytest

from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import check_layout

EXPERTS = "--num-experts 4 --moe-ffn-hidden-size 24 --moe-token-dispatcher-type alltoall"
FORMS = {
    "deepseek": f"{FAMILIES['latent attention, compressed queries']} {EXPERTS} --swiglu --normalization RMSNorm "
    "--moe-layer-freq [0,1] --moe-router-score-function sigmoid --moe-router-num-groups 2 "
    "--moe-router-group-topk 1 --moe-router-topk 2 --moe-router-enable-expert-bias --moe-router-bias-update-rate 0.01 "
    "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.1 --moe-shared-expert-intermediate-size 16 "
    "--untie-embeddings-and-output-weights --mtp-num-layers 1 --position-embedding-type rope",
    "mixtral": f"{FAMILIES['llama']} {EXPERTS} --moe-router-load-balancing-type aux_loss seq_aux_loss "
    "--moe-aux-loss-coeff 0.1 0.2 --moe-z-loss-coeff 0.01 --moe-grouped-gemm",
    "latent": f"{FAMILIES['latent attention']} {EXPERTS} --moe-aux-loss-coeff 0.1 --moe-shared-expert-gate "
    "--moe-shared-expert-intermediate-size 16 --disable-bias-linear --calculate-per-token-loss",
}
EP2, SP2 = "--expert-model-parallel-size 2", "--tensor-model-parallel-size 2 --sequence-parallel"
RING = "--context-parallel-size 2"
ULYSSES = f"{RING} --context-parallel-algo ulysses_cp_algo"
LAYOUTS = {
    "ep2": (2, EP2),
    "ep2 over a ring": (2, f"{EP2} {RING}"),
    "ep2 over ulysses": (2, f"{EP2} {ULYSSES}"),
    "ep2 x ring x dp2": (4, f"{EP2} {RING}"),
    "ep4 over ulysses x tp2 + sp": (
        4,
        f"--expert-model-parallel-size 4 {ULYSSES} {SP2} --expert-tensor-parallel-size 1",
    ),
    "ep2 x ring x pp2, overlap": (
        4,
        f"{EP2} {RING} --pipeline-model-parallel-size 2 --moe-shared-expert-overlap --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1",
    ),
}
ROWS = [
    *[("deepseek", layout) for layout in LAYOUTS],
    *[("mixtral", layout) for layout in ("ep2", "ep2 over a ring", "ep2 over ulysses")],
    *[("latent", layout) for layout in ("ep2 over a ring", "ep2 over ulysses", "ep4 over ulysses x tp2 + sp")],
]


@pytest.mark.parametrize(("form", "layout"), ROWS)
def test_a_layout_equals_one_process(form, layout):
    """Each model under each layout, two micro-batches a data rank: one process's losses, gradients, weights and
    moments."""
    samples = 8 if layout in ("ep2", "ep2 x ring x dp2") else 4
    check_layout(f"{TINY} --global-batch-size {samples} {FORMS[form]}", *LAYOUTS[layout])


@pytest.mark.parametrize(
    ("size", "layout"), [(4, f"{EP2} --micro-batch-size 2 --moe-aux-loss-coeff 1.0"), (2, f"{EP2} {RING}")]
)
def test_the_load_of_all_replicas_is_that_of_one_process(size, layout):
    """Two replicas with half of each of two micro-batches. A replica's loss uses its own tokens' scores over all
    replicas' tokens and is averaged over replicas, as in Megatron, so two need twice the coefficient."""
    balanced = "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.5 --calculate-per-token-loss"
    batch = f"--micro-batch-size {size} --global-batch-size {2 * size}"
    check_layout(f"{TINY} {FAMILIES['llama']} {EXPERTS} {balanced} {batch}", 2, layout)
