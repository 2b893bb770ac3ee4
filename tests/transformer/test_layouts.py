"""Every model family gives the same losses, gradients and weights however the work is split."""

from itertools import pairwise

import pytest

from tests.engine import TINY
from tests.layouts import check_layout, reference

FAMILIES = {
    "gpt": "--untie-embeddings-and-output-weights",
    "gpt tied, dropout": "--attention-dropout 0.2 --hidden-dropout 0.1",
    "gpt erf gelu": "--no-bias-gelu-fusion",
    "llama": "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
    "rope interleaved, scaled": "--position-embedding-type rope --rotary-interleaved "
    "--rotary-seq-len-interpolation-factor 2 --rotary-base 500000",
    "head norms, part of the head turns": "--position-embedding-type rope --rotary-percent 0.5 --qk-layernorm "
    "--add-qkv-bias --disable-bias-linear --swiglu",
    "head norms on one shared group": "--group-query-attention --num-query-groups 1 --qk-layernorm --add-qkv-bias "
    "--position-embedding-type rope",
    "squared relu": "--squared-relu --disable-bias-linear",
    "sandwich norm": "--use-sandwich-norm --attn-post-norm-scale 0.5 --ffn-post-norm-scale 0.25 "
    "--normalization RMSNorm",
    "no positions, residual after norm": "--position-embedding-type none --apply-residual-connection-post-layernorm",
    "one-centered norm": "--apply-layernorm-1p",
    "per token loss": "--calculate-per-token-loss",
    "sgd": "--optimizer sgd --weight-decay 0.1",
}
LAYOUTS = {
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "dp2": (2, ""),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "tp4": (4, "--tensor-model-parallel-size 4"),
    "tp4, ops": (4, "--tensor-model-parallel-size 4 --kernels ops"),
    "tp4 sp": (4, "--tensor-model-parallel-size 4 --sequence-parallel"),
    "pp2 dp2, stages first": (4, "--pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping"),
    "tp2 pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    "tp2 sp pp2": (4, "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"),
    "tp2 sp zb-h1": (
        4,
        "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1",
    ),
}
# Every family under tensor, pipeline and data parallelism; the large layouts where they add something.
ROWS = [(family, layout) for family in FAMILIES for layout in ("tp2", "tp2 sp", "pp2", "dp2")]
ROWS += [
    ("gpt tied, dropout", "tp2 pp2"),
    ("gpt tied, dropout", "pp2 dp2, stages first"),
    ("gpt", "tp4"),
    ("gpt tied, dropout", "tp4 sp"),
    ("gpt tied, dropout", "tp2 sp pp2"),
    ("llama", "tp2 sp pp2"),
    ("gpt tied, dropout", "tp2 sp zb-h1"),
    ("squared relu", "tp4"),
    ("llama", "tp4"),
    ("head norms on one shared group", "tp4 sp"),
    ("head norms on one shared group", "tp4, ops"),
    ("per token loss", "tp2 pp2"),
]


def flags_of(family: str) -> str:
    """A family's command line."""
    return f"{TINY} --global-batch-size 8 {FAMILIES[family]}"


@pytest.mark.parametrize(("family", "layout"), ROWS)
def test_a_layout_equals_one_process(family, layout):
    """Masks differ between micro-batches, so averaging in the wrong place shows; dropout masks are compared too."""
    check_layout(flags_of(family), *LAYOUTS[layout])


def test_every_family_is_another_model():
    """No flag of the table above is without effect: each family's second loss differs from all others'."""
    losses = sorted((reference(flags_of(family))[0][1], family) for family in FAMILIES)
    for (one, first), (other, second) in pairwise(losses):
        assert other - one > 1e-5, (first, second)
