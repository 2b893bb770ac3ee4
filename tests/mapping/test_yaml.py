"""YAML files in their three layouts (sections, nested, Megatron's) give the config that flags give."""

from __future__ import annotations

import pytest
import yaml

from mapping import ConfigError, init_configs_from_args, init_configs_from_dict, init_configs_from_yaml, parse_args
from mapping.flags import IGNORED
from mapping.readers.yaml_file import values_of
from mapping.reading import read
from parallel_core.config.tree import path_of
from tests.support.assets import ROOT
from tests.support.mapping.lines import line, reading
from tests.support.mapping.yaml_files import MEGATRON

EXAMPLE = ROOT / "examples/gpt/pretrain_gpt_38BV3.yaml"

SECTIONS = {
    "model_config": {
        "vocab_size": 512,
        "unpadded_vocab_size": 512,
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 64,
        "norm_epsilon": "1e-6",
    },
    "training_config": {"train_iters": 10},
    "optimizer_config": {"learning_rate": "1e-3"},
    "dataset_config": {"batch_size": 2, "global_batch_size": 8, "tokenizer_type": None},
}


@pytest.mark.parametrize("content", [SECTIONS, MEGATRON], ids=["sections", "Megatron"])
def test_a_file_gives_the_config_of_the_flags(content):
    """A small model as sections and in Megatron's layout gives the config of the good command line."""
    assert init_configs_from_dict(content, world_size=1) == reading("--norm-epsilon 1e-6").config


def test_the_38b_example():
    """The nested 38B example gives its documented layout, sizes, types, fused operators and scales."""
    config = init_configs_from_yaml(EXAMPLE)
    model, parallel = config.model_config, config.parallel_config
    assert parallel.world_size == 32 and parallel.sequence_parallel
    assert parallel.num_layer_list == [[4, 4, 4, 4], [4, 4, 4, 4], [4, 4, 4, 4], [4, 4, 4, 2]]
    assert (model.vocab_size, model.make_vocab_size_divisible_by, model.num_query_groups) == (165664, 16, 8)
    assert (model.normalization, model.norm_epsilon, model.hidden_act) == ("FusedRMSNorm", 1e-5, "swiglu")
    assert (model.use_flash_attention, model.apply_rope_fusion, model.masked_softmax_fusion) == (True, True, False)
    assert (model.embedding_init_method_std, model.init_method_std) == (0.5, 0.00884)
    assert (model.params_dtype, model.compute_dtype) == ("float32", "bfloat16")
    assert (model.use_sandwich_norm, model.attn_post_norm_scale, model.ffn_post_norm_scale) == (True, 0.0447, 0.0825)
    assert model.untie_embeddings_and_output_weights and not model.add_bias_linear
    assert config.training_config.bucket_size == 40000000 and config.training_config.bf16


@pytest.mark.parametrize(
    "content, blamed, near",
    [
        ({"model_config": {"num_layer": 4}}, "model_config.num_layer", "model_config.num_layers"),
        ({"modell_config": {"num_layers": 4}}, "modell_config", ""),
        ({"moe_config": {"num_expertz": 4}}, "moe_config.num_expertz", "moe_config.num_experts"),
        ({"model_config": {"fa_config": {"pre_token": 4}}}, "fa_config.pre_token", "pre_tokens"),
        ({"accelerate_config": {"parallelization": {"tensor_paralel": 8}}}, "tensor_paralel", "tensor_parallel"),
        ({"accelerate_config": {"precision": {"fused_operators": "rope, spell"}}}, "fused_operators", "spell"),
        ({"language_model": {"num_layer": 4}}, "num_layer", "num_layers"),
        ({"language_model": {"num_layers": "four"}}, "num_layers", "four"),
        ({"model_config": {"num_layers": "four"}}, "model_config.num_layers", "four"),
        ({"language_model": {}, "fp4": "e2m1"}, "fp4 e2m1: ", "bf16"),
        ({"model_config": None}, "--num-layers: ", "must be given"),
        ({"model_config": 5}, "model_config 5: ", "must hold keys"),
        ({"language_model": 5}, "language_model 5: ", "must hold keys"),
        ({"model_parallel": [1]}, "model_parallel [1]: ", "must hold keys"),
        ({"language_model": {5: 3}}, "5: ", "no such key"),
        ({"language_model": {"num_layers": 2}, "num_layers": 4}, "num_layers 4: ", "contradicts num_layers 2"),
        ({"language_model": {"activation_func": "gelu"}, "activation_func": "swiglu"}, "swiglu: ", "contradicts"),
    ],
)
def test_a_wrong_key_or_value_is_an_error_with_the_nearest_name(content, blamed, near):
    """An unknown key or value is an error with its path and, for a key, the nearest known one."""
    with pytest.raises(ConfigError) as caught:
        init_configs_from_dict(content)
    assert any(blamed in error and near in error for error in caught.value.errors), caught.value.errors


def test_all_errors_of_a_file_are_said_at_once():
    """An unknown key and a wrong value of a file are reported together."""
    with pytest.raises(ConfigError) as caught:
        init_configs_from_dict({**SECTIONS, "model_config": {**SECTIONS["model_config"], "x": 1, "num_layers": 0}})
    assert len(caught.value.errors) == 2


def test_flags_win_over_the_file_that_yaml_cfg_names():
    """A flag beside --yaml-cfg replaces the file's value; other values stay the file's."""
    found = read(
        ["--yaml-cfg", str(EXAMPLE), "--lr", "1e-3", "--train-iters", "5", "--num-attention-heads", "96"], world_size=32
    )
    assert found.errors == []
    assert (found.config.model_config.hidden_size, found.config.model_config.num_attention_heads) == (6144, 96)


def test_the_arguments_of_a_file_give_the_config_of_the_file():
    """The arguments of --yaml-cfg, from which a training script makes its config, give the file's config, also values
    that no single argument has."""
    argv = ["--yaml-cfg", str(EXAMPLE), "--lr", "1e-3", "--train-iters", "5", "--max-position-embeddings", "4096"]
    args = parse_args(argv, world_size=32)
    config = init_configs_from_args(args)
    assert config == read(argv, world_size=32).config
    assert (args.hidden_size, args.hidden_dropout, args.bf16, args.world_size) == (6144, 0.0, True, 32)
    model, parallel = config.model_config, config.parallel_config
    assert (model.num_query_groups, model.hidden_act, config.training_config.use_distributed_optimizer) == (
        8,
        "swiglu",
        True,
    )
    assert parallel.num_layer_list == [[4, 4, 4, 4], [4, 4, 4, 4], [4, 4, 4, 4], [4, 4, 4, 2]]


def test_flags_and_a_file_in_megatrons_layout_are_one_command_line(tmp_path):
    """Flags beside a --yaml-cfg in Megatron's layout equal one command line in which they come last; derived values
    follow from the result."""
    model = MEGATRON["language_model"] | {"activation_func": "swiglu", "num_query_groups": 2}
    file = tmp_path / "megatron.yaml"
    file.write_text(yaml.safe_dump(MEGATRON | {"language_model": model, "group_query_attention": True}))
    argv = ["--yaml-cfg", str(file), "--tensor-model-parallel-size", "2", "--global-batch-size", "16", "--squared-relu"]
    found = read([*argv, "--vocab-size", "500"], world_size=2)
    flags = "--norm-epsilon 1e-6 --group-query-attention --num-query-groups 2 --tensor-model-parallel-size 2"
    wanted = reading(f"{flags} --squared-relu --global-batch-size 16 --vocab-size 500", 2)
    assert found.errors == wanted.errors == [] and found.config == wanted.config


def test_a_missing_file_is_an_error(tmp_path):
    """A --yaml-cfg that does not exist is one error with the flag."""
    found = read([*line(), "--yaml-cfg", str(tmp_path / "none.yaml")], world_size=1)
    (error,) = found.errors
    assert "--yaml-cfg" in error


@pytest.mark.parametrize(
    ("sizes", "world"),
    [({"expert_model_parallel_size": 4}, 4), ({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}, 4)],
)
def test_the_smallest_size_holds_the_experts(sizes, world):
    """A file without a world size gets the smallest that holds its layout: each expert once, cut over tp unless it says
    otherwise."""
    content = {"parallel_config": {**sizes, "sequence_parallel": True}, "moe_config": {"num_experts": 4}}
    found = init_configs_from_dict({**SECTIONS, **content})
    assert found.parallel_config.world_size == world


def test_a_file_is_explained_on_a_laptop_at_the_smallest_size_that_holds_it():
    """The 38B example, read without a launcher, has a world size of 32 and no error."""
    found = read(["--yaml-cfg", str(EXAMPLE)])
    assert found.errors == [] and found.args.world_size == found.config.parallel_config.world_size == 32


def test_megatrons_names_are_taken_beside_the_fields():
    """A Megatron argument's name is a key in its field's section or the one around it; a field made of several
    arguments has its own name only."""
    model = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "seq_length": 8, "padded_vocab_size": 32}
    content = {"model_config": model | {"shape_order": "BSH"}, "training_config": {"train_iters": 3}}
    config = init_configs_from_dict(content)
    assert config.model_config.vocab_size == 32 and config.model_config.fa_config.input_layout == "BSH"
    assert config.training_config.training_iters == 3
    with pytest.raises(ConfigError, match=r"optimizer_config\.adam_beta1: there is no such key"):
        init_configs_from_dict(content | {"optimizer_config": {"adam_beta1": 0.8}})


def test_findings_name_the_keys_of_the_file():
    """Errors about a file name its keys instead of flags, and the value in the field's terms."""
    blocks = {"num_layers": 4, "attention": {"head_num": 4}}
    llm = {"embedding": {"hidden_size": 64}, "tokenizer": {"padded_size": 512}, "position": {"max_size": 64}}
    content = {
        "accelerate_config": {
            "parallelization": {"tensor_parallel": 8},
            "precision": {"compute_dtype": "bfloat16", "param_init_dtype": "float16"},
        },
        "model_config": {"llm": {**llm, "blocks": blocks}},
    }
    with pytest.raises(ConfigError) as caught:
        init_configs_from_dict(content)
    assert [error.split(":")[0] for error in caught.value.errors] == [
        "model_config.llm.blocks.attention.head_num 4",
        "accelerate_config.precision.param_init_dtype float16",
    ]
    assert "accelerate_config.parallelization.tensor_parallel 8" in caught.value.errors[0]
    assert {finding.source for finding in caught.value.findings} == {"the dictionary"}


@pytest.mark.parametrize(
    "content, key",
    [
        (MEGATRON, "gated_linear_unit"),
        ({"model_config": {"llm": {"tokenizer": {"use_fast": True}}}}, "model_config.llm.tokenizer.use_fast"),
    ],
)
def test_a_key_that_does_nothing_is_ignored_with_a_reason(content, key):
    """A known key without effect is ignored with a reason."""
    given, findings = values_of(content, "a file")
    (entry,) = [entry for entry in given if entry.name == key]
    assert findings == [] and entry.status == IGNORED and entry.reason


def test_what_a_file_ignores_is_printed(capsys):
    """Ignored keys of a file are printed with reasons, or in one line where the result is the same without."""
    init_configs_from_dict(MEGATRON, world_size=1)
    lines = capsys.readouterr().out.splitlines()
    assert "ignored: gated_linear_unit: activation_func says it" in lines
    assert "ignored, the result is the same without: fp8_interval use_mcore_models" in lines


@pytest.mark.parametrize("value", ["x", [], [[1]], {"a": 1}, "None", "9" * 30, float("inf")])
@pytest.mark.parametrize(
    "key",
    [
        "bf16",
        "params_dtype",
        "lr",
        "num_layers",
        "moe_layer_freq",
        "noop_layers",
        "original_max_position_embeddings",
        "rampup_batch_size",
    ],
)
def test_a_strange_value_is_a_finding_not_a_traceback(key, value):
    """A value of the wrong kind for a key is accepted or a finding, never another exception."""
    path = path_of({"lr": "learning_rate", "num_layers": "model_config.num_layers"}.get(key, key))
    for content in (MEGATRON | {key: value}, {path.split(".")[0]: {path.rpartition(".")[2]: value}}):
        try:
            init_configs_from_dict(content, world_size=1)
        except ConfigError as error:
            assert error.findings
