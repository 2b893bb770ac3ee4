"""Recurrent layers (delta nets, state spaces) under every layout: heads are cut over ranks and exchanged for the
sequence.

Initial decays are made slow here. Those that models begin with leave nothing of a token after the next, so that
gradients of decays are rounding, and a state that is lost would not show.
"""

from __future__ import annotations

import pytest

from parallel_core.initial_values import Constant
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.families import BESIDE, FAMILIES
from tests.support.layouts import STEPS, Trained, check_layout, train

EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 --moe-token-dispatcher-type alltoall"
DELTA = f"{TINY} --global-batch-size 4 {FAMILIES['gated delta net']}"
SPACES = f"{TINY} --global-batch-size 4 {FAMILIES['state spaces']}"
BOTH = f"{TINY} --global-batch-size 4 {BESIDE} H*"
TP2, CP2 = "--tensor-model-parallel-size 2", "--context-parallel-size 2"
HYBRID = "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
LAYOUTS = {
    "tp2 sp": (2, f"{TP2} --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "cp2 ulysses": (2, f"{CP2} --context-parallel-algo ulysses_cp_algo"),
    "cp4 hybrid": (4, HYBRID),
    "tp2 sp cp2 ring": (4, f"{CP2} {TP2} --sequence-parallel"),
}


def with_memory(backend, flags: str) -> Trained:
    """`train` a model whose decays begin slow."""
    from pynative.transformer.gpt_model import GPTModel

    def build(config, **stage):
        model = GPTModel(config, **stage)
        for path, parameter in model.parameters_and_names():
            if path.endswith("dt_bias"):
                parameter.meta.initial = Constant(-4.0)
        return model

    return train(backend, flags, build=build)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", [DELTA, SPACES], ids=["delta net", "state space"])
def test_a_layout_equals_one_process(model, layout):
    """Losses, every gradient, updates and states of delta nets and state spaces are one process's."""
    check_layout(model, *LAYOUTS[layout], how=with_memory)


def test_experts_on_ranks_of_their_own():
    """Delta nets and experts in one layer, ep2: one process's results."""
    check_layout(f"{DELTA} {EXPERTS}", 2, "--expert-model-parallel-size 2", how=with_memory)


@pytest.mark.parametrize("model", [DELTA, SPACES, BOTH], ids=["delta net", "state space", "side by side"])
@pytest.mark.parametrize(
    "recompute",
    ["--recompute-granularity selective", FULL],
)
def test_recomputation_changes_no_bit(model, recompute):
    """Recompute of the part between the linears, and of whole layers: the bits of a run without."""
    plain, again = (run(1, with_memory, f"{model} {STEPS} {more}")[0] for more in ("", recompute))
    assert plain.losses == again.losses and plain.digests == again.digests


@pytest.mark.parametrize("model", [DELTA, SPACES, BOTH], ids=["delta net", "state space", "side by side"])
def test_both_implementations_agree(model):
    """One model by `host` and by `ops` kernels: losses, gradients and updates."""
    check_layout(model, 1, "--kernels ops", how=with_memory)
