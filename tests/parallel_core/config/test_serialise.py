"""The model's configuration, restored from the sections that a checkpoint's manifest stores."""

import json

import pytest

from parallel_core.config.serialise import config_for_inference
from tests.support.engine import TINY, config_of

FLAGS = {
    "gpt": "",
    "llama": "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--rotary-percent 0.5 --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2",
    "qwen": "--swiglu --add-qkv-bias --disable-bias-linear --position-embedding-type rope --rotary-base 1000000",
}


def _sections(flags: str) -> dict:
    """The sections of a config for 8 ranks as a manifest stores them: plain JSON."""
    return json.loads(json.dumps(config_of(f"{TINY} --global-batch-size 16 {flags}", 8).to_dict()))


@pytest.mark.parametrize("family", FLAGS)
def test_the_model_is_the_one_that_was_saved(family):
    """`config_for_inference` restores each field of the model section, nested ones too, for one process, though the run
    had eight."""
    flags = f"--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 {FLAGS[family]}"
    restored = config_for_inference(_sections(flags))
    assert restored.model_config == config_of(f"{TINY} --global-batch-size 16 {flags}", 8).model_config
    assert restored.parallel_config.world_size == 1
    assert restored.dataset_config.tokenizer_type == "NullTokenizer"


def test_its_fused_operators_come_along():
    """The restored config has the run's fused operators, so that generation computes as training did."""
    restored = config_for_inference(_sections(f"{FLAGS['llama']} --use-flash-attn"))
    assert restored.parallel_config.fused.operators == ("attention", "rotary")


def test_no_product_is_rounded_to_8_bits():
    """A model that was trained with `--fp8-simulate` generates without it: a new token's products are computed on
    arrays without rounding, and a prompt's would not be."""
    rounded = "--bf16 --fp8-format hybrid --fp8-recipe tensorwise --fp8-simulate"
    restored = config_for_inference(_sections(rounded))
    assert restored.model_config == config_for_inference(_sections("--bf16")).model_config
    assert not restored.model_config.float8.fp8_simulate


def test_a_field_of_another_version_is_named():
    """A stored field that this version does not know is an error with its path: leaving it out could change what the
    model computes."""
    sections = _sections("")
    sections["model_config"]["new_kind_of_norm"] = True
    with pytest.raises(ValueError, match=r"the checkpoint sets model_config\.new_kind_of_norm"):
        config_for_inference(sections)
