"""--use-checkpoint-args: the model's options are those of the checkpoint, as in Megatron-LM."""

import json
from types import SimpleNamespace

import pytest

from mapping import init_configs_from_args, parse_args
from mapping.reading import read
from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.manifest import Manifest
from parallel_core.config import ConfigError
from tests.support.checkpoint_cases import unpack
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES

LLAMA = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --ffn-hidden-size 48 "
    "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 --qk-layernorm "
    "--tensor-model-parallel-size 2"
)
REST = "--micro-batch-size 2 --train-iters 2 --lr 1e-3 --eval-iters 0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A --save folder with the manifest of a LLaMA-like run over tp2."""
    return saved(tmp_path_factory.mktemp("save"), config_of(f"{TINY} {LLAMA}", 2))


def saved(root, config):
    """The folder `root` with a checkpoint of this config, of which only the manifest exists: no more is read."""
    checkpoint = root / commit.checkpoint_name(2)
    checkpoint.mkdir()
    manifest = Manifest(iteration=2, consumed_samples=8, topology={}, config=config.to_dict(), scheduler={})
    (checkpoint / "manifest.json").write_text(manifest.to_json())
    (root / commit.TRACKER).write_text("2\n")
    return root


def config_with(flags: str, world: int = 2):
    """The config of flags without a model, with --use-checkpoint-args."""
    return init_configs_from_args(parse_args(f"{REST} --use-checkpoint-args {flags}".split(), world_size=world))


def test_nothing_of_the_model_has_to_be_said(folder):
    """Sizes, kinds of layers, vocabulary and tokenizer are those of the run that saved; the layout is the flags'."""
    found, saved = config_with(f"--load {folder}"), config_of(f"{TINY} {LLAMA}", 2)
    ours, theirs = found.to_dict(), saved.to_dict()
    not_taken = {"init_method_std", "embedding_init_method_std"}
    for section in ("model_config", "moe_config"):
        differs = {name for name, value in ours[section].items() if value != theirs[section][name]}
        assert differs <= not_taken, differs
    assert found.dataset_config.tokenizer_type == "NullTokenizer"
    assert found.parallel_config.tensor_model_parallel_size == 1


@pytest.mark.parametrize("family", ["sparse attention", "two tokens further, with their own ends"])
def test_newer_kinds_of_networks_are_taken(tmp_path, family):
    """Options that Megatron's --use-checkpoint-args does not know, such as sparse attention, are taken from the
    checkpoint, too."""
    flags = FAMILIES.get(family, "--num-nextn-predict-layers 2 --position-embedding-type rope")
    said = config_of(f"{TINY} {flags}", 1)
    found = config_with(f"--load {saved(tmp_path, said)}", 1).model_config
    assert found.sparse_attention == said.model_config.sparse_attention
    assert found.multi_token_prediction == said.model_config.multi_token_prediction


def test_adapters_are_taken(tmp_path):
    """Adapters (LoRA) of the checkpoint are taken without flags; rank and modules given by flags win."""
    said = config_of(f"{TINY} --lora-r 4 --lora-alpha 8 --lora-target-modules linear_qkv linear_fc1", 1)
    folder = saved(tmp_path, said)
    assert config_with(f"--load {folder}", 1).lora_config == said.lora_config
    own = config_with(f"--load {folder} --lora-r 2 --lora-target-modules linear_proj", 1).lora_config
    assert (own.lora_rank, own.lora_alpha, own.target_modules) == (2, 8.0, ["linear_proj"])


def test_a_base_says_nothing_of_adapters(folder):
    """A checkpoint without adapters leaves them to the flags."""
    assert not config_with(f"--load {folder}", 1).lora_config.use_lora
    own = config_with(f"--load {folder} --lora-r 2 --lora-target-modules linear_proj", 1).lora_config
    assert (own.lora_rank, own.lora_alpha, own.target_modules) == (2, 32.0, ["linear_proj"])


def test_positions_that_are_not_scaled_are_taken(tmp_path):
    """A checkpoint of latent attention without scaled positions is taken so, though yarn is latent attention's
    default."""
    said = config_of(f"{TINY} {FAMILIES['latent attention, compressed queries']}", 1)
    found = config_with(f"--load {saved(tmp_path, said)}", 1).model_config
    assert found.rope_scaling == said.model_config.rope_scaling and found.rope_scaling.type is None


def test_what_does_nothing_in_a_checkpoint_is_not_told(folder, capsys):
    """Options from a checkpoint that its network does not use (sizes of experts, latents) have no "no effect" line."""
    read(f"{REST} --use-checkpoint-args --load {folder}".split(), world_size=1).print_notes()
    assert "no effect" not in capsys.readouterr().out


def test_sizes_of_the_layout_on_request(folder):
    """--use-mp-args-from-checkpoint-args takes the parallel sizes of the checkpoint, over the flags'."""
    flags = f"--load {folder} --use-mp-args-from-checkpoint-args --tensor-model-parallel-size 1"
    assert config_with(flags).parallel_config.tensor_model_parallel_size == 2


def test_a_size_that_is_given_wins_and_a_kind_does_not(folder):
    """A size given by flag (--num-layers) wins over the checkpoint, a kind (--rotary-base, --hidden-dropout) does not,
    with a note, as in Megatron."""
    reading = read(
        f"{REST} --use-checkpoint-args --load {folder} --num-layers 3 --rotary-base 500 --hidden-dropout 0.2".split(),
        world_size=1,
        read_vocabulary=True,
    )
    model = reading.config.model_config
    assert not reading.errors and (model.num_layers, model.rotary_base, model.hidden_dropout_rate) == (3, 10000, 0)
    assert [note.partition(":")[0] for note in reading.notes] == ["--rotary-base 500.0", "--hidden-dropout 0.2"]
    assert all(str(folder) in note for note in reading.notes)


def test_arguments_show_what_was_taken(folder):
    """The arguments of `parse_args` have the checkpoint's values, and a later change of one counts."""
    args = parse_args(f"{REST} --use-checkpoint-args --load {folder}".split(), world_size=1)
    assert (args.num_layers, args.hidden_size, args.padded_vocab_size, args.vocab_size) == (2, 32, 64, 60)
    args.lr = 0.5
    config = init_configs_from_args(args)
    assert config.optimizer_config.learning_rate == 0.5 and config.model_config.hidden_act == "swiglu"


def test_a_model_of_huggingface_says_what_it_is(tmp_path):
    """A HuggingFace folder gives the model's options in the same way."""
    settings = json.loads((unpack("hf/llama", tmp_path) / "config.json").read_text())
    model = config_with(f"--load {unpack('hf/llama', tmp_path)} --seq-length 16", 1).model_config
    assert model.num_layers == settings["num_hidden_layers"] and model.hidden_act == "swiglu"
    assert model.ffn_hidden_size == settings["intermediate_size"] and model.normalization == "RMSNorm"


@pytest.fixture(params=["as it is", "converted"])
def of_huggingface(request, tmp_path):
    """A function from a case's name to its HuggingFace folder, or to a checkpoint of ours converted from it."""

    def folder(case: str):
        there = unpack(case, tmp_path)
        if request.param == "converted":
            write_native(formats.read(there), tmp_path / "ours")
            return tmp_path / "ours"
        return there

    return folder


@pytest.mark.parametrize(("case", "rates"), [("hf/llama", (0, 0)), ("hf/gpt2", (0.1, 0.1)), ("hf/mixtral", (0, 0))])
def test_dropout_is_the_one_of_the_model(of_huggingface, case, rates):
    """Dropout of a HuggingFace model, which no run has trained, is its config's, unless flags give another."""
    flags = f"--load {of_huggingface(case)} --seq-length 16"
    model = config_with(flags, 1).model_config
    assert (model.attention_dropout_rate, model.hidden_dropout_rate) == rates
    model = config_with(f"{flags} --attention-dropout 0 --hidden-dropout 0.2", 1).model_config
    assert (model.attention_dropout_rate, model.hidden_dropout_rate) == (0, 0.2)


def test_what_huggingface_does_not_say_is_the_flags(of_huggingface):
    """Options that a HuggingFace model does not have (how experts are computed) are the flags'; a layout asked for from
    it is refused."""
    flags = f"--load {of_huggingface('hf/mixtral')} --seq-length 16"
    moe = config_with(f"{flags} --moe-grouped-gemm --moe-token-dispatcher-type alltoall", 1).moe_config
    assert moe.moe_grouped_gemm and moe.moe_token_dispatcher_type == "alltoall"
    with pytest.raises(ConfigError, match="does not say on how many ranks it was made"):
        config_with(f"{flags} --use-mp-args-from-checkpoint-args", 1)


@pytest.mark.parametrize(
    ("case", "world", "sizes"),
    [
        ("legacy/mixtral_tp2_pp2_ep2", 8, (2, 2, None, 2)),
        ("legacy/llama_pp2_vpp2", 2, (1, 2, 2, 1)),
        ("torch_dist/llama_tp2_pp2_dp2_bf16_distopt", 4, (2, 2, None, 1)),
    ],
)
def test_a_run_of_megatron_says_its_layout_and_its_tokenizer(tmp_path, case, world, sizes):
    """A checkpoint of Megatron's gives the layout, on request, and the tokenizer."""
    flags = f"--load {unpack(case, tmp_path)} --use-mp-args-from-checkpoint-args --tokenizer-type GPT2BPETokenizer"
    found = config_with(flags, world)
    parallel = found.parallel_config
    assert sizes == (
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        parallel.virtual_pipeline_model_parallel_size,
        parallel.expert_model_parallel_size,
    )
    assert found.dataset_config.tokenizer_type == "NullTokenizer" and found.model_config.hidden_dropout_rate == 0


@pytest.mark.parametrize(
    ("section", "entry", "flag"),
    [
        ("model_config", {"hidden_size": "wide"}, "--hidden-size"),
        ("model_config", {"rotary_base": [1]}, "--rotary-base"),
        ("model_config", {"untie_embeddings_and_output_weights": 2}, "--untie-embeddings-and-output-weights"),
        ("moe_config", {"moe_router_topk": 1.5}, "--moe-router-topk"),
        ("model_config", {"num_layers": -3}, "--num-layers"),
    ],
)
def test_a_value_that_is_none_of_its_option_is_a_finding(tmp_path, section, entry, flag):
    """A manifest with an impossible value is an error with flag, value, place and fix."""
    config = config_of(f"{TINY} {LLAMA}", 2).to_dict()
    config[section] |= entry
    root = saved(tmp_path, SimpleNamespace(to_dict=lambda: config))
    with pytest.raises(ConfigError) as caught:
        config_with(f"--load {root}")
    (value,) = entry.values()
    told = [error for error in caught.value.errors if flag in error or flag[2:].replace("-", "_") in error]
    assert told and str(value) in told[0] and "; " in told[0], caught.value.errors


def test_what_a_run_left_before_its_first_save_is_no_checkpoint(tmp_path):
    """A --load that is also --save and holds only metrics is a first start; without --save it is an error."""
    (tmp_path / "metrics.jsonl").write_text("{}")
    flags = f"{TINY} --load {tmp_path} --save {tmp_path} --save-interval 1"
    assert config_with(flags).model_config == config_of(flags, 2).model_config
    with pytest.raises(ConfigError, match=f"--load {tmp_path}: there is no"):
        config_with(f"{TINY} --load {tmp_path}")


def test_an_empty_folder_leaves_all_to_the_flags(tmp_path):
    """An empty --load that is also --save leaves all options to the flags."""
    flags = f"{TINY} --load {tmp_path} --save {tmp_path} --save-interval 1"
    assert config_with(flags).model_config == config_of(flags, 2).model_config


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--use-checkpoint-args", "--use-checkpoint-args: needs --load"),
        ("--use-checkpoint-args --load {damaged}", "--load .*manifest.json"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, flags, words):
    """--use-checkpoint-args without --load, or with a damaged manifest, is an error."""
    (tmp_path / "iter_0000002").mkdir()
    (tmp_path / "iter_0000002" / "manifest.json").write_text("{")
    (tmp_path / commit.TRACKER).write_text("2\n")
    with pytest.raises(ConfigError, match=words):
        config_of(f"{TINY} {flags.format(damaged=tmp_path)}", 1)
