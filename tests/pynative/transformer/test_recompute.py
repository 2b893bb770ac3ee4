"""Recomputed parts give the bits of kept ones: losses, gradients, weights, under every schedule."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.families import FAMILIES
from tests.support.layouts import Trained, train
from tests.support.pipelines import pipeline

STEPS = "--train-iters 2 --adam-eps 1e-5"
DROPOUT = "--attention-dropout 0.2 --hidden-dropout 0.1"
GPT = f"{TINY} --num-layers 4 --global-batch-size 4 {STEPS} {DROPOUT}"
LLAMA = f"{TINY} --num-layers 4 --global-batch-size 4 {STEPS} {FAMILIES['llama']} {DROPOUT}"

FULL = "--recompute-granularity full --recompute-method"
UNIFORM, BLOCK = f"{FULL} uniform --recompute-num-layers", f"{FULL} block --recompute-num-layers"
SELECTIVE = "--recompute-granularity selective --recompute-modules"
FIRST_LINEAR = r"--select-recompute {'feed_forward\\.w1\\.matmul':True}"
EVERYTHING = r"--select-recompute ['mlp\\..*','.*_layernorm','self_attention\\.core_attention']"
NOTHING = r"--select-recompute-exclude ['mlp\\.activation','.*_layernorm']"
"""The flag that keeps even the activations and norms that a CPU run recomputes by default."""


def same(world: int, flags: str, *recomputed: str) -> None:
    """Check that runs with these recompute flags, and with the default, equal one that keeps everything, to the bit:
    rank 0's arrays and digests of every rank's shards."""
    plain = run(world, train, f"{flags} {NOTHING}")
    for more in ("", *recomputed):
        for found, expected in zip(run(world, train, f"{flags} {more}"), plain, strict=True):
            assert_same(found, expected, more)


def assert_same(found: Trained, expected: Trained, what: str) -> None:
    assert found[:2] == expected[:2], what
    assert found.digests == expected.digests, what
    for arrays, wanted in zip(found[2:6], expected[2:6], strict=True):
        if wanted is not None:
            assert arrays.keys() == wanted.keys()
            wrong = [name for name in wanted if not np.array_equal(arrays[name], wanted[name])]
            assert not wrong, (what, wrong)


WAYS = (
    f"{UNIFORM} 3",
    f"{BLOCK} 2 --recompute-activation-function --recompute-norm --recompute-norm-num-layers 1",
    f"{SELECTIVE} layernorm mlp core_attn",
    FIRST_LINEAR,
    EVERYTHING,
    "--recompute True --select-recompute-exclude ['mlp']",
    r"--recompute [3] --select-recompute-exclude {'.*attention\\..*':[2],'mlp\\.linear_fc1':True}",
)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_one_process(model):
    """Whole layers, uniform and block; each of --recompute-modules; several together."""
    same(1, model, *WAYS)


def test_operators_of_mindspore():
    """--kernels ops, where operators are composed of many and the order of a gradient's addends could change."""
    same(
        1,
        f"{LLAMA} --num-layers 2 --kernels ops",
        f"{BLOCK} 1 --recompute-norm --recompute-activation-function",
        EVERYTHING,
    )


def test_bfloat16():
    """Recomputed layers or modules of a bfloat16 run give the bits of a run that keeps everything."""
    same(1, f"{LLAMA} --bf16", f"{UNIFORM} 2", EVERYTHING)


TP2, SP = "--tensor-model-parallel-size 2", "--sequence-parallel"
LATENT = f"{TINY} --global-batch-size 4 {STEPS} {DROPOUT} {FAMILIES['latent attention']}"
COMPRESSED = f"{TINY} --global-batch-size 4 {STEPS} {FAMILIES['latent attention, compressed queries']}"

REST_OF_LATENT = [
    rf"--recompute True --select-recompute-exclude ['{kept}']"
    for kept in (r"latent\\.up_projections", r"self_attention\\.core_attention")
]


def test_heads_of_latent_attention():
    """Latent attention whose queries, keys and values are not kept: core attention has them made again, or runs again
    itself."""
    same(1, LATENT, f"{SELECTIVE} mla_up_proj layernorm", f"{SELECTIVE} mla_up_proj core_attn", *REST_OF_LATENT)
    same(1, f"{COMPRESSED} --kernels ops", "--recompute-mla-up-proj")
    same(2, f"{COMPRESSED} {TP2} {SP}", f"{SELECTIVE} mla_up_proj")


EXPERTS = (
    f"{TINY} --num-layers 4 --global-batch-size 8 {STEPS} {DROPOUT} {FAMILIES['experts']} --moe-aux-loss-coeff 0.1 "
    f"--moe-z-loss-coeff 0.1"
)


def test_modules_of_experts():
    """moe, moe_act and shared_experts on pp2, two micro-batches in flight; a router that runs again adds its losses'
    gradients once."""
    same(
        2,
        f"{EXPERTS} --train-iters 1 {pipeline('1f1b', 2)}",
        f"{SELECTIVE} moe",
        f"{SELECTIVE} moe_act",
        f"{SELECTIVE} shared_experts",
    )


KEPT = "--no-mp-comm-recompute"
LAYOUTS = {
    "tp2": (
        TP2,
        (
            f"{UNIFORM} 1",
            f"{UNIFORM} 2 --recompute-slice-activation",
            f"--recompute [3] {KEPT}",
            f"{SELECTIVE} mlp {KEPT}",
        ),
    ),
    "tp2 sp": (
        f"{TP2} {SP}",
        (
            f"{UNIFORM} 2",
            f"--recompute True --recompute-slice-activation {KEPT}",
            rf"--recompute [2] {KEPT} --select-comm-recompute ['ffn_norm\\.norm']",
            EVERYTHING,
            f"{SELECTIVE} layernorm core_attn mlp",
        ),
    ),
    "ring": ("--context-parallel-size 2", (f"{UNIFORM} 1", f"{SELECTIVE} core_attn")),
    "ulysses": ("--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo", (f"{UNIFORM} 1", EVERYTHING)),
    **{
        schedule: (pipeline(schedule, 2), (f"{UNIFORM} 1", f"--recompute [1,2] {FIRST_LINEAR}", EVERYTHING))
        for schedule in ("1f1b", "interleaved", "zb-h1")
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    """Collectives run again or kept, inputs cut over ranks, several micro-batches in flight, weight gradients put off;
    one step (two: `test_one_process`)."""
    flags, ways = LAYOUTS[layout]
    samples = 8 if "pipeline" in flags else 4
    same(2, f"{LLAMA} --global-batch-size {samples} --train-iters 1 {flags}", *ways)
