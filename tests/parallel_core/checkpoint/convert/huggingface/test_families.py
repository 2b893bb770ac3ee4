"""The recorded HuggingFace families: a model that is read is written again bit by bit, and flags of other tools give
the same network."""

import json
import re
import shutil

import numpy as np
import pytest

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.config import config_of as huggingface_config
from parallel_core.checkpoint.convert.huggingface.config import (
    family_of,
    matching_family,
    settings_of,
    with_vocabulary,
)
from parallel_core.checkpoint.convert.huggingface.read import read_tensors
from parallel_core.checkpoint.convert.huggingface.write import write_huggingface
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.networks import differences
from parallel_core.checkpoint.tensor_file import write_tensors
from parallel_core.config import serialise
from tests.support.engine import config_of
from tests.support.family_cases import CASES, folder_of, recorded

UNUSED = {"longcat_flash": r"experts\.[678]\."}
"""Tensors in the files that do not count: those that transformers keeps for experts that do nothing, which are written
as zeros."""
_OF_LATENTS = "model_config.multi_latent_attention.latent_norm_epsilon"
UNSAID = {
    ("longcat_flash", "MindSpeed-LLM"): {_OF_LATENTS},
    ("glm_moe_dsa", "Megatron-LM"): {_OF_LATENTS},
    ("glm_moe_dsa", "MindSpeed-LLM"): {_OF_LATENTS, "model_config.sparse_attention.dsa_indexer_k_norm_epsilon"},
}
"""Settings that a tool's flags cannot say: transformers' norms of latents have an epsilon of their own."""
FLAGS = [(case, tool) for case in CASES for tool in recorded(case)["flags"]]


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_written_as_it_was_read(case, tmp_path):
    """A recorded folder, read and written again, has every tensor under its name, bit by bit, and a config.json of the
    same network and type."""
    model = formats.read(folder_of(case), "hf")
    write_huggingface(model, tmp_path)
    theirs, ours = read_tensors(folder_of(case)), read_tensors(tmp_path)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if re.search(UNUSED.get(case, "^$"), name):
            assert not np.any(ours[name].read())
            continue
        np.testing.assert_array_equal(ours[name].read(), tensor.read(), err_msg=name)
    said, written = (json.loads((each / "config.json").read_text()) for each in (folder_of(case), tmp_path))
    assert written["model_type"] == said["model_type"]
    again = formats.read(tmp_path, "hf")
    assert not differences(*(serialise.config_of(with_vocabulary(each.settings)) for each in (model, again)))


@pytest.mark.parametrize(("case", "tool"), FLAGS)
def test_flags_of_other_tools_say_the_same_network(case, tool):
    """The flags that a tool has for the model are accepted, and give the network that the HuggingFace folder's
    config.json gives."""
    said = serialise.config_of(with_vocabulary(formats.read(folder_of(case), "hf").settings))
    found = {difference.path for difference in differences(config_of(recorded(case)["flags"][tool], 1), said)}
    assert found == UNSAID.get((case, tool), set())


def test_a_qwen3_next_without_experts_is_read_and_written_as_one():
    """config.json says so by `num_experts` alone, with the same type and sizes of experts that it has none of; its
    feed-forward blocks have the names that transformers gives them."""
    with_experts = json.loads((folder_of("qwen3_next") / "config.json").read_text())
    without = with_experts | {"num_experts": 0, "intermediate_size": 48}
    family = family_of(without)
    assert family is not family_of(with_experts)
    ours = serialise.config_of(with_vocabulary(settings_of(without, family)))
    assert ours.moe_config.num_experts is None and ours.model_config.ffn_hidden_size == 48
    assert matching_family(ours, "qwen3-next") is family is matching_family(ours, "qwen3_next")
    written = huggingface_config(ours, family)
    assert written["num_experts"] == 0 and family_of(written) is family
    assert not differences(ours, serialise.config_of(with_vocabulary(settings_of(written, family))))
    theirs = {name for _, names, _ in family.parameters for name in names}
    assert {f"model.layers.{{layer}}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")} <= theirs
    assert not any("expert" in name for name in theirs)


OF_FURTHER_LAYERS = {
    *(f"attn.{name}" for name in ("attn_sink", "kv_norm.weight", "q_norm.weight", "wkv.weight", "wo_a.weight")),
    *("attn.wo_b.weight", "attn.wq_a.weight", "attn.wq_b.weight", "attn_norm.weight", "ffn_norm.weight"),
    *("ffn.gate.weight", "ffn.gate.bias", "e_proj.weight", "h_proj.weight", "enorm.weight", "hnorm.weight"),
    *("norm.weight", *(f"ffn.shared_experts.w{n}.weight" for n in (1, 2, 3))),
    *(f"hc_{part}_{kind}" for part in ("attn", "ffn", "head") for kind in ("base", "fn", "scale")),
}
"""Names below `mtp.0` in the public files of DeepSeek-V4-Flash, without experts and without factors of 8-bit
weights."""


def with_further_layer() -> Model:
    """The recorded DeepSeek-V4 with a layer of multi-token prediction, of random weights."""
    model = formats.read(folder_of("deepseek_v4"), "hf")
    model.network["multi_token_prediction"] = {"num_layers": 1, "share_embedding_and_output_weight": True}
    (chunk,) = model_chunks(serialise.config_of(with_vocabulary(model.settings)).model_config)
    numbers = np.random.default_rng(1)
    for name, spec in {**chunk.parameters(), **chunk.untrained()}.items():
        if name not in model.weights:
            model.weights[name] = of_array(numbers.random(spec.shard.shape, np.float32))
    return model


@pytest.mark.parametrize("repeated", [False, True])
def test_layers_that_predict_further_are_deepseeks(repeated, tmp_path):
    """DeepSeek-V4's multi-token prediction layer is written under the public files' names, without an embedding and
    output layer of its own; it is read again bit by bit, also from a file that repeats both tables."""
    model = with_further_layer()
    write_huggingface(model, tmp_path)
    tensors = {name: tensor.read() for name, tensor in read_tensors(tmp_path).items()}
    written = {name.removeprefix("mtp.0.") for name in tensors if name.startswith("mtp.")}
    assert {name for name in written if ".experts." not in name} == OF_FURTHER_LAYERS
    e_proj, h_proj = (tensors[f"mtp.0.{name}_proj.weight"] for name in "eh")
    np.testing.assert_array_equal(
        np.concatenate([e_proj, h_proj], axis=1), model.weights["mtp.layers.0.eh_proj.weight"].read()
    )
    if repeated:
        copies = {"mtp.0.emb.tok_emb.weight": "embed.weight", "mtp.0.head.weight": "head.weight"}
        tensors |= {copy: tensors[name] for copy, name in copies.items()}
        write_tensors(tmp_path / "model.safetensors", {name: of_array(array) for name, array in tensors.items()})
    again = formats.read(tmp_path, "hf")
    assert again.network["multi_token_prediction"] == model.network["multi_token_prediction"]
    assert again.weights.keys() == model.weights.keys()
    for name, tensor in model.weights.items():
        np.testing.assert_array_equal(again.weights[name].read(), tensor.read(), err_msg=name)


def test_a_table_of_experts_has_a_row_for_each_id():
    """`with_ids` cuts the tables of hash layers to the tokenizer's ids, as the network then has them; for more ids than
    a table has it is refused."""
    model = formats.read(folder_of("deepseek_v4"), "hf")
    ids = model.unpadded_vocab_size
    fewer, padded = model.with_ids(ids - 3), model.with_rows(ids + 5)
    table = next(name for name in model.weights if name.endswith("tid2eid"))
    for changed, rows in ((fewer, ids - 3), (padded, ids)):
        assert changed.weights[table].shape[0] == changed.unpadded_vocab_size == rows
        (chunk,) = model_chunks(serialise.config_of(changed.settings).model_config)
        assert chunk.untrained()[table].shard.shape == changed.weights[table].shape
    assert model.weights[table].shape[0] == ids
    with pytest.raises(ValueError, match=f"--vocab-size {ids + 1}: .*tid2eid names the experts of {ids} ids"):
        model.with_ids(ids + 1)


def test_stacked_experts_are_counted_apart(tmp_path):
    """A model with more experts than its files have tensors, which hold all experts of a layer, is read; more experts
    than the stacks have are refused."""
    shutil.copytree(folder_of("gpt_oss"), tmp_path, dirs_exist_ok=True)
    tensors = {name: tensor.read() for name, tensor in read_tensors(tmp_path).items()}
    more = {name: np.concatenate([array] * 32) for name, array in tensors.items() if ".mlp." in name}
    write_tensors(
        tmp_path / "model.safetensors", {name: of_array(array) for name, array in {**tensors, **more}.items()}
    )
    config = json.loads((tmp_path / "config.json").read_text())
    experts = config["num_local_experts"] * 32
    assert experts > len(tensors)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": experts}))
    assert formats.read(tmp_path, "hf").settings["moe_config"]["num_experts"] == experts
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_local_experts": 10**9}))
    with pytest.raises(ValueError, match="num_local_experts 1000000000: the files have no more than"):
        formats.read(tmp_path, "hf")
