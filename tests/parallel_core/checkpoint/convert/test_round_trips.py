"""`convert`: checkpoints are written again in every format and layout, each tensor bit-equal."""

import json
import re

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert import __main__ as command
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.read import read_tensors
from parallel_core.checkpoint.convert.huggingface.write import write_huggingface
from parallel_core.checkpoint.convert.megatron.args import settings_of
from parallel_core.checkpoint.convert.model import Model, is_table
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.convert.reader import holds_checkpoint, open_checkpoint
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.tensor_file import TensorFile, write_tensors
from parallel_core.checkpoint.torch_files.archive import read_archive
from tests.support.checkpoint_cases import CASES, digests, facts, state_digests, unpack
from tests.support.damage import flip
from tests.support.goldens import golden

pytestmark = pytest.mark.slow

WITHOUT_A_FAMILY = {
    "torch_dist/moe_mixed_ep2",
    "torch_dist/moe_ep2_pp2_vpp2_bf16_distopt_default",
    "legacy/moe_ep2_grouped_gemm_bf16_distopt",
}
"""Cases for whose network HuggingFace has no model: sigmoid scores and a shared expert without latent attention."""

TABLES = ("embedding.word_embeddings.weight", "output_layer.weight")


def convert(*arguments: object) -> str:
    """Run the command without comparing logits; the message of its failure, empty if it succeeds."""
    try:
        command.convert(command.parser().parse_args(["--logits", "no", *map(str, arguments)]))
    except ValueError as error:
        return str(error)
    return ""


def ids_alone(tensors: dict, count: int) -> dict:
    """Digests of the tensors, embedding and output layer cut to `count` rows, without padding of the vocabulary."""
    return digests(
        {
            name: t.with_length(count) if "embedding.word" in name or "output_layer" in name else t
            for name, t in tensors.items()
        }
    )


def states_of_ids(model: Model, count: int) -> dict:
    """Digests of the optimizer's states, embedding and output layer cut to `count` rows."""
    return {state: ids_alone(tensors, count) for state, tensors in model.states.items()}


def _narrow(name: str, array: np.ndarray) -> np.ndarray:
    """The array, cut to 24 features if it is a shared expert's of 32."""
    if "shared_experts.linear_fc1" in name:
        return np.concatenate((array[:24], array[32:56]))
    return array[:, :24] if "shared_experts.linear_fc2" in name else array


def with_further_tokens() -> Model:
    """The recorded model with latent attention, experts and a depth of multi-token prediction."""
    case = golden("deepseek")
    args = json.loads((case / "config.json").read_text())["resolved_args"]
    # HuggingFace gives this size as a number of experts
    args |= {"padded_vocab_size": 512, "moe_shared_expert_intermediate_size": 24}
    weights = {name: of_array(_narrow(name, array)) for name, array in np.load(case / "weights.npz").items()}
    return Model(weights, settings_of(args))


def test_a_depth_repeats_the_embedding_of_a_tied_model(tmp_path):
    """A tied DeepSeek-V3 with multi-token prediction is written with the embedding as its depth's output layer, and
    read again as the same model."""
    model = with_further_tokens()
    model.network["untie_embeddings_and_output_weights"] = False
    del model.weights[TABLES[1]]
    write_huggingface(model, tmp_path)
    again = formats.read(tmp_path, "hf")
    assert digests(again.weights) == digests(model.weights)
    assert again.network["multi_token_prediction"]["share_embedding_and_output_weight"]


def test_further_tokens_travel(tmp_path):
    """A model with latent attention, experts and multi-token prediction goes to Megatron's files of tp2 pp2 and to
    HuggingFace's with each tensor; its depth is stored in Megatron's order with a copy of the embedding on the last
    stage, and a HuggingFace copy that differs becomes the depth's own table."""
    model, ours = with_further_tokens(), tmp_path / "ours"
    weights = model.weights
    write_native(model, ours)
    target = ("--to", "megatron", "--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2)
    assert convert("--input", ours, "--output", tmp_path / "megatron", *target) == ""
    assert convert("--input", tmp_path / "megatron", "--output", tmp_path / "hf", "--to", "hf") == ""
    for folder in ("megatron", "hf"):
        found = formats.read(tmp_path / folder)
        assert digests(found.weights) == digests(weights)
        assert found.network["multi_token_prediction"]["num_layers"] == 1
    (last,) = (tmp_path / "megatron").rglob("mp_rank_01_001/model_optim_rng.pt")
    names = list(read_archive(last)["model"])
    assert names[0] == "embedding.word_embeddings.weight" and names[-1] == "output_layer.weight"
    depth = [name.split(".")[3] for name in names if name.startswith("mtp.layers.0.")]
    assert list(dict.fromkeys(depth)) == ["enorm", "hnorm", "eh_proj", "transformer_layer", "final_layernorm"]
    file = TensorFile(tmp_path / "hf" / "model.safetensors")
    arrays = {name: file.array(name).copy() for name in file.names}
    (table,) = (name for name in arrays if re.fullmatch(r"model\.layers\.\d+\.embed_tokens\.weight", name))
    arrays[table][-1, -1] += 1
    write_tensors(file.path, arrays)
    own = formats.read(tmp_path / "hf")
    assert own.network["multi_token_prediction"]["share_embedding_and_output_weight"] is False
    assert {name for name in own.weights if is_table(name)} == {*TABLES, *(f"mtp.layers.0.{name}" for name in TABLES)}
    assert convert("--input", tmp_path / "hf", "--output", tmp_path / "again", "--to", "hf") == ""
    assert digests(read_tensors(tmp_path / "again")) == digests(read_tensors(tmp_path / "hf"))


def test_all_tables_have_a_row_for_each_id():
    """`with_rows` pads a depth's own embedding and output layer as the model's, weights and states."""
    names = [*TABLES, *(f"mtp.layers.0.{name}" for name in TABLES)]
    weights = {name: of_array(np.ones((5, 2), np.float32)) for name in names}
    padded = Model(dict(weights), {"model_config": {"unpadded_vocab_size": 5}}, {"exp_avg": weights}).with_rows(8)
    assert [tensor.shape for _, tensor in padded.all_tensors()] == [(8, 2)] * 8


@pytest.mark.parametrize("case", CASES)
def test_through_our_format_to_both_others(case, tmp_path):
    """Each case, converted to our format and from it to HuggingFace and to Megatron, has the recorded tensors, states
    and position; a network that HuggingFace does not have is refused there."""
    source, ours = unpack(case, tmp_path), tmp_path / "ours"
    assert convert("--input", source, "--output", ours) == ""
    native = formats.read(ours)
    assert digests(native.weights) == facts(case)["parameters"]
    assert state_digests(native) == facts(case).get("optimizer", {})
    ids = facts(case)["vocab_size"]
    before = ids_alone(native.weights, ids)
    problem = convert("--input", ours, "--output", tmp_path / "hf", "--to", "hf", "--vocab-size", ids, "--no-verify")
    if case in WITHOUT_A_FAMILY:
        assert "no model of HuggingFace's" in problem
    else:
        assert problem == "" and digests(formats.read(tmp_path / "hf", "hf").weights) == before
    assert (
        convert(
            "--input", ours, "--output", tmp_path / "megatron", "--to", "megatron", "--vocab-size", ids, "--no-verify"
        )
        == ""
    )
    megatron = formats.read(tmp_path / "megatron", "megatron")
    assert ids_alone(megatron.weights, ids) == before
    assert states_of_ids(megatron, ids) == states_of_ids(native, ids)
    assert megatron.position.consumed_samples == native.position.consumed_samples
    if native.states:
        assert megatron.position == native.position


LAYOUTS = {
    "hf/gpt2": [
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 3",
        "--num-layers-per-virtual-pipeline-stage 1",
    ],
    "hf/llama": ["--tensor-model-parallel-size 2 --pipeline-model-parallel-size 3"],
    "legacy/llama_tp2_bf16": ["--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"],
    "hf/deepseek_v3": ["--tensor-model-parallel-size 2 --expert-model-parallel-size 4"],
    "hf/mixtral": [
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2",
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1",
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "flags"), [(case, flags) for case, all_flags in LAYOUTS.items() for flags in all_flags]
)
def test_at_any_layout_of_megatron(case, flags, tmp_path):
    """Written for Megatron over tensor, pipeline and expert ranks with a padded vocabulary, and read again: weights and
    states are the source's."""
    assert (
        convert(
            "--input",
            unpack(case, tmp_path),
            "--output",
            tmp_path / "m",
            "--to",
            "megatron",
            "--make-vocab-size-divisible-by",
            8,
            *flags.split(),
            "--no-verify",
        )
        == ""
    )
    model = formats.read(tmp_path / "m")
    ids = facts(case)["padded_vocab_size"]
    assert model.vocab_size % 8 == 0
    assert ids_alone(model.weights, ids) == facts(case)["parameters"]
    assert states_of_ids(model, ids) == states_of_ids(formats.read(unpack(case, tmp_path)), ids)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--pipeline-model-parallel-size 2", "3 layers"),
        ("--tensor-model-parallel-size 8", "--tensor-model-parallel-size 8: the model has 4 attention heads"),
        ("--expert-model-parallel-size 2", "--expert-model-parallel-size 2: the model has 0 experts"),
        ("--vocab-size 152", "--vocab-size 152"),
    ],
)
def test_a_layout_that_does_not_divide_the_model_leaves_nothing(flags, words, tmp_path):
    """A layout that does not divide the model is an error with the flag, and no folder is left, not even a hidden
    one."""
    problem = convert(
        "--input", unpack("hf/gpt2", tmp_path / "in"), "--output", tmp_path / "m", "--to", "megatron", *flags.split()
    )
    assert words in problem
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_padding_of_the_vocabulary_both_ways(tmp_path):
    """A target with a layout pads embedding and output layer with rows of zeros; converted to HuggingFace only the ids'
    rows are left."""
    source = unpack("hf/llama", tmp_path)
    assert (
        convert(
            "--input",
            source,
            "--output",
            tmp_path / "ours",
            "--tensor-model-parallel-size",
            4,
            "--make-vocab-size-divisible-by",
            16,
        )
        == ""
    )
    padded = formats.read(tmp_path / "ours")
    assert (padded.vocab_size, padded.unpadded_vocab_size) == (192, 150)
    assert not padded.weights["output_layer.weight"].read()[150:].any()
    assert convert("--input", tmp_path / "ours", "--output", tmp_path / "hf", "--to", "hf") == ""
    assert digests(formats.read(tmp_path / "hf").weights) == facts("hf/llama")["parameters"]


@pytest.mark.parametrize(
    ("case", "victim"),
    [("ours", "mp_rank_00_000.safetensors"), ("legacy/llama_tp2_bf16", "mp_rank_01/model_optim_rng.pt")],
)
def test_a_damaged_source_is_not_converted(case, victim, tmp_path):
    """A source with a flipped bit is refused by file name and nothing is written: the target's checksums would vouch
    for the damage."""
    source = tmp_path / "ours"
    if case == "ours":
        assert convert("--input", unpack("hf/llama", tmp_path), "--output", source) == ""
    else:
        source = unpack(case, tmp_path)
    (path,) = source.rglob(victim)
    flip(path, path.stat().st_size * 2 // 3)
    assert str(path) in convert("--input", source, "--output", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_no_checkpoint_is_written_over(tmp_path):
    """An --output that has the iteration already is refused, also if it is the --input itself: its optimizer states
    would be lost here."""
    ours = tmp_path / "ours"
    assert convert("--input", unpack("legacy/llama_tp2_bf16", tmp_path), "--output", ours) == ""
    (folder,) = ours.glob("iter_*")
    assert f"has {folder.name} already" in convert("--input", folder, "--output", ours, "--no-load-optim")
    assert formats.read(ours).states


def test_logits_of_what_is_not_read_again_are_refused(tmp_path):
    """--logits yes beside --no-verify is refused."""
    source = unpack("hf/llama", tmp_path)
    assert "--logits yes" in convert("--input", source, "--output", tmp_path / "o", "--logits", "yes", "--no-verify")


def test_a_run_goes_on_in_the_folder_of_the_model_it_began_with(tmp_path):
    """--load of a HuggingFace folder means its model until a checkpoint was saved into the same folder, from then on
    that one."""
    folder = unpack("hf/llama", tmp_path)
    assert holds_checkpoint(folder) and open_checkpoint(folder).directory == folder
    write_native(formats.read(folder), folder)
    assert open_checkpoint(folder).directory == commit.find(folder)
    assert formats.recognise(folder, "hf")[1] == folder and not holds_checkpoint(tmp_path)


def test_what_is_written_is_compared_with_what_was_read(tmp_path, monkeypatch):
    """A writer that swaps two tensors of one shape is caught by reading again; its output is removed, and the folder's
    latest checkpoint stays the one before."""

    def swapped(model, directory, check):
        names = ["decoder.layers.0.input_layernorm.weight", "decoder.layers.1.input_layernorm.weight"]
        model.weights = dict(model.weights)
        model.weights[names[0]], model.weights[names[1]] = model.weights[names[1]], model.weights[names[0]]
        return write(model.with_rows(model.vocab_size), directory, check)

    source, ours, write = unpack("hf/llama", tmp_path), tmp_path / "ours", command.write_native
    monkeypatch.setattr(command, "write_native", lambda model, *where: swapped(type(model)(**vars(model)), *where))
    problem = convert("--input", source, "--output", ours)
    assert "decoder.layers.0.input_layernorm.weight: its values changed" in problem and not ours.exists()
    model = formats.read(source)
    model.position.iteration = 7
    write(model, ours)
    assert "its values changed" in convert("--input", source, "--output", ours)
    assert sorted(path.name for path in ours.iterdir()) == ["iter_0000007", commit.TRACKER]
    assert (ours / commit.TRACKER).read_text() == "7\n"
