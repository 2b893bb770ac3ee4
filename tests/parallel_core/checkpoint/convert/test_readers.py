"""Checkpoints recorded from transformers and Megatron-LM are read with every tensor bit-equal."""

import json
import shutil

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.read import read_tensors
from parallel_core.checkpoint.tensor_file import TensorFile, write_tensors
from parallel_core.config.serialise import config_of
from tests.support.checkpoint_cases import CASES, digests, facts, state_digests, unpack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder into which the module's cases are unpacked."""
    return tmp_path_factory.mktemp("cases")


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_what_the_tool_had(case, folder):
    """Names, shapes and values of weights and optimizer states, and the iteration, equal the recorded ones; the
    settings fit the shapes."""
    model = formats.read(unpack(case, folder))
    assert digests(model.weights) == facts(case)["parameters"]
    assert state_digests(model) == facts(case).get("optimizer", {})
    assert model.position.iteration == facts(case)["iteration"]
    network = config_of(model.settings).model_config
    assert network.vocab_size == facts(case)["padded_vocab_size"]
    shapes = {name: tensor.shape for name, tensor in model.weights.items()}
    assert shapes["decoder.final_layernorm.weight"] == (network.hidden_size,)


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("hf/")])
def test_both_spellings_of_a_config_mean_the_same(case, folder, tmp_path):
    """config.json as transformers 4 writes it gives the settings and tensors that transformers 5's gives."""
    original = unpack(case, folder)
    other = tmp_path / "checkpoint"
    shutil.copytree(original, other)
    shutil.copy(original.parent / "config_transformers4.json", other / "config.json")
    before, after = formats.read(original), formats.read(other)
    assert before.settings == after.settings and digests(before.weights) == digests(after.weights)


def test_one_whole_file_counts_whatever_an_index_says(tmp_path):
    """A model.safetensors with all tensors counts although an index of an earlier download lies beside it, as in
    transformers."""
    folder = unpack("hf/llama", tmp_path)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-00001-of-00002.safetensors"}}')
    assert digests(formats.read(folder).weights) == facts("hf/llama")["parameters"]


def test_an_index_may_name_constants(tmp_path):
    """Rotary frequencies in the files and in the index, as in the published LLaMA 2, are passed over: they are no
    weights."""
    folder = unpack("hf/mixtral", tmp_path)
    index, (first, *_) = folder / "model.safetensors.index.json", sorted(folder.glob("*.safetensors"))
    file = TensorFile(first)
    constant = "model.layers.0.self_attn.rotary_emb.inv_freq"
    arrays = {name: file.array(name).copy() for name in file.names}
    write_tensors(first, arrays | {constant: np.ones(4, np.float32)})
    content = json.loads(index.read_text())
    content["weight_map"][constant] = first.name
    index.write_text(json.dumps(content))
    assert digests(formats.read(folder).weights) == facts("hf/mixtral")["parameters"]


def test_steps_of_the_optimizer_are_found(folder):
    """The optimizer's count of steps is read wherever the case's version of Megatron has it: in each parameter's state,
    in the groups, or nowhere."""
    steps = {
        case: formats.read(unpack(case, folder)).position.optimizer_steps
        for case in CASES
        if "optimizer" in facts(case)
    }
    assert len(steps) >= 5
    assert steps.pop("torch_dist/llama_dp2_bf16_distopt_core_0.12") == 3
    assert set(steps.values()) == {10}


def test_the_optimizer_can_be_left_out(folder):
    """`optimizer=False` reads a checkpoint without its optimizer states."""
    assert formats.read(unpack("legacy/llama_tp2_bf16", folder), optimizer=False).states == {}


@pytest.mark.parametrize(
    ("case", "victim"),
    [
        ("legacy/llama_pp2_vpp2", "iter_0000010/mp_rank_00_001/model_optim_rng.pt"),
        ("legacy/llama_tp2_bf16", "iter_0000010/mp_rank_01/model_optim_rng.pt"),
        ("torch_dist/mixtral_ep2", "iter_0000010/__1_0.distcp"),
        ("hf/mixtral", "model-00002-of-00004.safetensors"),
    ],
)
@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_a_file_that_is_missing_or_cut_off_is_named(case, victim, damage, tmp_path):
    """Each file of a checkpoint that is missing or cut off is an error that names the folder or a parameter; no tensors
    are returned."""
    folder = unpack(case, tmp_path)
    path = folder / victim
    content = path.read_bytes()
    path.unlink()
    if damage == "cut off":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises((ValueError, OSError)) as error:
        digests(formats.read(folder).weights)
    assert str(folder) in str(error.value) or "layers" in str(error.value) or "embedding" in str(error.value)


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_a_file_that_an_index_alone_has_is_named(ending, tmp_path):
    """A file of weights that is missing is a ValueError with its path and the index that names it, in both formats."""
    name = {"safetensors": "model", "bin": "pytorch_model"}[ending]
    index = tmp_path / f"{name}.{ending}.index.json"
    index.write_text(json.dumps({"weight_map": {"w": f"{name}-1.{ending}"}}))
    with pytest.raises(ValueError, match=f"{name}-1.{ending}: there is no such file, which {index.name} names"):
        read_tensors(tmp_path)
