"""Greedy continuations equal those of `transformers`, token by token."""

import numpy as np
import pytest

from parallel_core.findings import ConfigError
from pynative.generation.options import config_of
from tests.support.checkpoint_cases import unpack
from tests.support.distributed import run
from tests.support.generation import continued, recorded

TWO_RANKS = {
    "tp2": {"tensor_model_parallel_size": 2},
    "pp2": {"pipeline_model_parallel_size": 2},
    "ep2": {"expert_model_parallel_size": 2},
}
WITH_EXPERTS = ("mixtral", "deepseek_v3", "qwen2_moe")
REFUSED = {
    ("qwen2", "tp2"): "--num-attention-heads 5: must be a multiple of --tensor-model-parallel-size 2",
    **{(name, "ep2"): "needs --num-experts" for name in recorded() if name not in WITH_EXPERTS},
}
"""(case, layout) that Megatron cannot run either -> words of the error."""
LAYOUTS = [(name, layout) for name in recorded() for layout in TWO_RANKS]


def check(name: str, world_size: int, folder, whole_texts: bool = True, **parallel) -> None:
    """Check that every rank's continuations are the recorded ones, with a cache and, if `whole_texts`, computed anew
    for each token, whose probabilities must be the same."""
    case = recorded()[name]
    asked = {"max_new_tokens": len(case["new_tokens"][0])}
    ways = [asked, asked | {"use_cache": False}][: 1 + whole_texts]
    ranks = run(world_size, continued, unpack(f"hf/{name}", folder), case["prompts"], ways, **parallel)
    for found in ranks:
        for way in found:
            assert [ids for ids, _ in way] == case["new_tokens"]
            np.testing.assert_allclose([p for _, p in way], [p for _, p in found[0]], atol=1e-5)


@pytest.mark.parametrize("name", recorded())
def test_one_rank(name, tmp_path):
    """Greedy continuations of prompts of different lengths in one batch, with cache and without, are transformers'."""
    check(name, 1, tmp_path)


@pytest.mark.parametrize(("name", "layout"), [each for each in LAYOUTS if each not in REFUSED])
def test_two_ranks(name, layout, tmp_path):
    """tp2, pp2 and ep2 give the recorded texts on all ranks. Without a cache only pp2 is tried: it alone does something
    different then, sending whole texts."""
    check(name, 2, tmp_path, layout == "pp2", **TWO_RANKS[layout])


@pytest.mark.parametrize(("name", "layout"), REFUSED)
def test_a_layout_that_a_case_cannot_have_is_refused(name, layout, tmp_path):
    """The error names the rule before any rank starts."""
    with pytest.raises(ConfigError, match=REFUSED[name, layout]):
        config_of(unpack(f"hf/{name}", tmp_path), "float32", device_target="CPU", world_size=2, **TWO_RANKS[layout])
