"""A model of another tool's, converted and loaded, computes the logits that the tool computed."""

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.config import config_for_inference
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.manifest import Manifest
from parallel_core.config import ParallelConfig
from tests.support.assets import asset
from tests.support.checkpoint_cases import CASES, unpack
from tests.support.distributed import run
from tests.support.engine import job

NOT_IN_THE_ENGINE = ("mixtral", "moe", "deepseek")
"""Experts and latent attention."""
DENSE = [case for case in CASES if not any(word in case for word in NOT_IN_THE_ENGINE)]


def logits_of(backend, folder: str, ids: np.ndarray) -> np.ndarray:
    """What the engine computes in float32 from a checkpoint's weights."""
    import mindspore as ms

    from pynative.checkpointing import load_model
    from pynative.transformer.gpt_model import GPTModel

    sections = Manifest.read(commit.find(folder)).config
    sections["model_config"] |= {
        "params_dtype": "float32",
        "compute_dtype": "float32",
        "embedding_init_dtype": "float32",
    }
    config = config_for_inference(sections, ParallelConfig())
    with job(backend, config):
        model = GPTModel(config.model_config, parallel_output=False)
        load_model(folder, model)
        model.set_train(False)
        positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
        return model(ms.Tensor(ids), ms.Tensor(positions), None).asnumpy()


def converted(case: str, folder) -> object:
    """The case as a checkpoint of ours, weights alone."""
    write_native(formats.read(unpack(case, folder), optimizer=False), folder / "ours")
    return folder / "ours"


@pytest.mark.parametrize("case", DENSE)
def test_logits_are_those_of_the_tool(case, tmp_path):
    """Weights bit-equal and settings understood: positions, norms, activations, groups, ties."""
    expected = np.load(asset(f"checkpoints/{case}.npz"))
    (found,) = run(1, logits_of, converted(case, tmp_path), expected["input_ids"])
    np.testing.assert_allclose(found, expected["logits"], rtol=0, atol=2e-5)


def test_scaled_rotary_positions_reach_2048_tokens(tmp_path):
    """Llama 3.1's: forgetting the scaling changes these logits by 4."""
    expected = np.load(asset("checkpoints/hf/llama3_rope_scaling_tied.npz"))
    (found,) = run(1, logits_of, converted("hf/llama3_rope_scaling_tied", tmp_path), expected["long_input_ids"])
    np.testing.assert_allclose(found[:, -16:], expected["long_logits_last16"], rtol=0, atol=1e-4)
