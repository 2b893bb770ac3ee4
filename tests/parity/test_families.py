"""Families of models against what `transformers` recorded of them: on one rank in full, and one step under each layout
of two.

A layout is one launch, which goes through all cases that can have it, so a row costs one step of each case.
"""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from tests.support import family_cases
from tests.support.distributed import run
from tests.support.family_cases import CASES, arrays, folder_of, recorded


def layers_of(case: str) -> int:
    """The number of decoder layers of a recorded case."""
    config = json.loads((folder_of(case) / "config.json").read_text(encoding="utf-8"))
    counted = (config[name] for name in ("num_hidden_layers", "num_layers") if name in config)
    return next(counted, None) or len(config["layers_block_type"])


def stages(case: str) -> str:
    """Flags of two pipeline stages; an odd number of layers puts the middle one on the first."""
    second = layers_of(case) // 2
    return f"--pipeline-model-parallel-size 2 --num-layer-list {layers_of(case) - second},{second}"


EVERY_LAYER = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
LAYOUTS = {
    "tp2": "--tensor-model-parallel-size 2",
    "tp2 sp": "--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity selective",
    "ep2": "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall",
    "cp2 ring": "--context-parallel-size 2",
    "cp2 ulysses": "--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo",
    "pp2, recomputed": f"{EVERY_LAYER} {{stages}}",
}
CANNOT = {
    "ep2": {
        "deepseek_v4",
        "falcon_h1",
        "gemma2",
        "gemma3",
        "glm_moe_dsa",
        "mamba2",
        "minimax_m2",
        "olmo2",
        "phi3_longrope",
        "qwen3_5",
        "qwen3_5_moe",
    },
    "cp2 ring": {"qwen3_next"},
}
"""Layout -> cases that it cannot run: ep2 without an even number of experts, or sizes that it does not divide."""


def steps(backend, cases: Sequence[str], layout: str) -> list[family_cases.Trained]:
    """One training step on the recorded batch of each case under a layout, on this rank."""
    return [family_cases.trained(backend, case, layout.format(stages=stages(case))) for case in cases]


@pytest.mark.parametrize("case", CASES)
def test_one_rank(case):
    """A family's logits, loss and gradients of the recorded batch, losses of 20 steps, and greedy continuations with
    cache and without are transformers'."""
    np.testing.assert_allclose(
        run(1, family_cases.logits, case)[0], arrays(case)["logits"], rtol=0, atol=family_cases.LOGITS
    )
    assert not family_cases.problems(case, run(1, family_cases.trained, case, "")[0])
    assert not family_cases.curve_problems(case, run(1, family_cases.curve, case)[0])
    assert run(1, family_cases.texts, case)[0] == [recorded(case)["new_tokens"]] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks(layout):
    """One step of every family under the layout: the recorded loss and every recorded gradient, on both ranks."""
    cases = [case for case in CASES if case not in CANNOT.get(layout, ())]
    ranks = run(2, steps, cases, LAYOUTS[layout])
    found = {case: [family_cases.problems(case, rank[i]) for rank in ranks] for i, case in enumerate(cases)}
    assert not {case: wrong for case, wrong in found.items() if any(wrong)}


@pytest.mark.parametrize("case", ["deepseek_v4", "falcon_h1"])
def test_operators_of_an_ascend(case):
    """A whole model with --kernels ops, MindSpore's operators that an Ascend runs: the recorded loss and every
    gradient."""
    assert not family_cases.problems(case, run(1, family_cases.trained, case, "--kernels ops")[0])


def test_longrope_turns_longer_texts_otherwise():
    """Phi-3 beyond its original length has the recorded logits, by its factors for long texts: those for short ones are
    off by 0.8."""
    said = arrays("phi3_longrope")
    (found,) = run(1, family_cases.logits_of, "phi3_longrope", said["long_input_ids"])
    np.testing.assert_allclose(found[:, -16:], said["long_logits_last16"], rtol=0, atol=family_cases.LOGITS)
