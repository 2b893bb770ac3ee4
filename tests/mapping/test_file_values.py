"""Words and types in configuration files: each means what the flags mean by it, or is refused with the file's key."""

from __future__ import annotations

import pytest
import yaml

from mapping import ConfigError, init_configs_from_dict
from mapping.reading import read, stops
from parallel_core.config import ModelConfig
from parallel_core.config.recompute import RecomputeConfig
from tests.support.mapping.lines import reading
from tests.support.mapping.yaml_files import MEGATRON, nested, sections


def errors(content: dict) -> list[str]:
    """The errors of a wrong configuration given as a dictionary."""
    with pytest.raises(ConfigError) as caught:
        init_configs_from_dict(content)
    return caught.value.errors


@pytest.mark.parametrize(
    "content, groups",
    [
        (nested(blocks={"attention": {"head_num": 8, "kv_group_size": 4, "attention_type": "MHA"}}), 8),
        (nested(blocks={"attention": {"head_num": 8, "kv_group_size": 4, "attention_type": "GQA"}}), 4),
        (nested(blocks={"attention": {"head_num": 8, "kv_group_size": 4}}), 4),
        (sections(model_config={"group_query_attention": False, "num_query_groups": 2}), 4),
        (sections(model_config={"group_query_attention": True, "num_query_groups": 2}), 2),
    ],
)
def test_heads_share_keys_only_if_that_is_asked_for(content, groups):
    """num_query_groups counts only if the file asks for grouped-query attention (or does not name a kind); else it is
    the number of heads."""
    assert init_configs_from_dict(content).model_config.num_query_groups == groups


def test_the_rule_of_shared_keys_is_the_configs():
    """`ModelConfig` itself takes num_query_groups only with group_query_attention."""
    sizes = dict(vocab_size=512, num_layers=4, hidden_size=64, num_attention_heads=4, seq_length=64)
    assert ModelConfig(**sizes, num_query_groups=2).num_query_groups == 4
    assert ModelConfig(**sizes, num_query_groups=2, group_query_attention=True).num_query_groups == 2


@pytest.mark.parametrize(
    "content, first, second",
    [
        (
            nested(precision={"fused_operators": "rope", "nofused_operators": "rope"}),
            "accelerate_config.precision.fused_operators",
            "accelerate_config.precision.nofused_operators False",
        ),
        (
            sections(parallel_config={"model_parallel": 2, "tensor_model_parallel_size": 4}),
            "parallel_config.model_parallel 2",
            "parallel_config.tensor_model_parallel_size 4",
        ),
        (
            {**sections(dataset_config={"micro_batch_num": 2}), "runner_config": {"gradient_accumulation_steps": 4}},
            "dataset_config.micro_batch_num 2",
            "runner_config.gradient_accumulation_steps 4",
        ),
    ],
)
def test_two_keys_that_disagree_are_both_named(content, first, second):
    """Two keys of a file that fill one field with different values are an error with both."""
    assert f"{second}: contradicts {first}; leave one of them out" in errors(content)


def test_two_keys_that_agree_are_one():
    """Two keys of a file that fill one field with the same value are accepted."""
    content = sections(parallel_config={"model_parallel": 2, "tensor_model_parallel_size": 2})
    assert init_configs_from_dict(content).parallel_config.tensor_model_parallel_size == 2


@pytest.mark.parametrize("fused", [["swiglu", " rmsnorm"], "swiglu, rmsnorm", [], ""])
@pytest.mark.parametrize("unfused", [["rope", "masked_softmax"], "rope,masked_softmax"])
def test_operators_are_named_in_a_list_or_a_text(fused, unfused):
    """fused_operators and nofused_operators take a list of names as well as a text with commas between."""
    content = nested({"layernorm": {"norm_type": "RMSNorm"}}, {"fused_operators": fused, "nofused_operators": unfused})
    model = init_configs_from_dict(content).model_config
    assert not model.apply_rope_fusion and not model.masked_softmax_fusion
    assert model.apply_swiglu_fusion == bool(fused)
    assert model.normalization == ("FusedRMSNorm" if fused else "RMSNorm")


@pytest.mark.parametrize("given", [5, ["rope", 5], {"rope": {"on": True}}, [["rope"]]])
@pytest.mark.parametrize("key", ["fused_operators", "nofused_operators"])
def test_operators_that_are_no_names_are_one_error(key, given):
    """Another value than names of operators is one error with the key."""
    content = nested({"layernorm": {"norm_type": "RMSNorm"}}, {key: given})
    (error,) = errors(content)
    assert error.startswith(f"accelerate_config.precision.{key}")


def test_an_unknown_kind_of_attention_is_refused():
    """Another attention_type than GQA and MHA in the nested layout is one error with the file's key."""
    (error,) = errors(nested(blocks={"attention": {"head_num": 8, "attention_type": "XYZ"}}))
    assert error.startswith("model_config.llm.blocks.attention.attention_type XYZ: must be one of GQA, MHA")


@pytest.mark.parametrize(
    "compute, key, value",
    [
        ("bfloat16", "softmax_compute_dtype", "nonsense"),
        ("bfloat16", "softmax_compute_dtype", "float16"),
        ("bfloat16", "logits_compute_dtype", "nonsense"),
        ("bfloat16", "logits_compute_dtype", "bfloat16"),
        ("bfloat16", "logits_compute_dtype", "float16"),
        ("bfloat16", "residual-connection", "float16"),
        ("float32", "residual-connection", "bfloat16"),
        ("float16", "grad_accumulation_dtype", "bfloat16"),
        ("float32", "compute_dtype", "nonsense"),
    ],
)
def test_a_type_that_a_part_cannot_have_is_refused_by_its_key(compute, key, value):
    """A type that softmax, logits and so on cannot have beside this compute type is one error with the file's key."""
    (error,) = errors(nested(precision={"compute_dtype": compute, key: value}))
    assert error.startswith(f"accelerate_config.precision.{key} {value}: must be one of float32")


@pytest.mark.parametrize(
    "compute, key, value, section, field, filled",
    [
        ("float32", "residual-connection", "float32", "model_config", "fp32_residual_connection", False),
        ("bfloat16", "residual-connection", "float32", "model_config", "fp32_residual_connection", True),
        ("bfloat16", "residual-connection", "bfloat16", "model_config", "fp32_residual_connection", False),
        ("bfloat16", "softmax_compute_dtype", "bfloat16", "model_config", "attention_softmax_in_fp32", False),
        ("float16", "logits_compute_dtype", "float16", "model_config", "fp16_lm_cross_entropy", True),
        ("bfloat16", "grad_accumulation_dtype", "bfloat16", "training_config", "grad_reduce_in_bf16", True),
        ("fp16", "softmax_compute_dtype", "fp32", "model_config", "attention_softmax_in_fp32", True),
    ],
)
def test_a_type_beside_the_compute_type(compute, key, value, section, field, filled):
    """A part's type in a file sets the flag for float32 in that part where it differs from the compute type."""
    config = init_configs_from_dict(nested(precision={"compute_dtype": compute, key: value}))
    assert getattr(getattr(config, section), field) is filled


def test_an_unknown_checkpoint_format_is_refused():
    """An unknown ckpt_format in a file is one error with the file's key."""
    (error,) = errors(sections(training_config={"ckpt_format": "nonsense"}))
    assert error.startswith("training_config.ckpt_format nonsense: must be one of")


@pytest.mark.parametrize("kind", ["safetensors", "ckpt"])
def test_the_formats_of_the_earlier_system(kind):
    """--ckpt-format safetensors and ckpt, MindFormers' values, do not stop a run."""
    assert stops(reading(f"--ckpt-format {kind}")) == []


@pytest.mark.parametrize("prefix", ["../x", "a/b", ".hidden", "-x", "a b"])
def test_a_prefix_is_the_start_of_a_name(prefix):
    """A checkpoint prefix with a folder, a leading dot or dash, or a blank is refused: it is the beginning of a file
    name."""
    (error,) = errors(sections(training_config={"prefix": prefix}))
    assert error.startswith(f"training_config.prefix {prefix}: must be")


def test_errors_of_a_file_name_no_flag_that_nobody_typed():
    """Errors about values of a file name its keys and no flags."""
    for content in (
        nested(precision={"compute_dtype": "bfloat16"}, parallelization={"tensor_parallel": 3}),
        sections(model_config={"num_attention_heads": 7, "fp16_lm_cross_entropy": True}),
        {"training_config": {"train_iters": 1}},
    ):
        assert not [error for error in errors(content) if "--" in error]


@pytest.mark.parametrize("nothing", [False, [], [0, 0], [[0, 0], [False, 0]], {"feed_forward\\.mul": False}, 0])
def test_a_recompute_that_names_no_layer_asks_for_nothing(nothing):
    """Recompute settings that are false, empty or all zeros equal none."""
    for name in ("recompute", "select_recompute", "select_comm_recompute"):
        assert getattr(RecomputeConfig(**{name: nothing}), name) is None
        config = init_configs_from_dict(sections(parallel_config={name: nothing}))
        assert config == init_configs_from_dict(sections())


@pytest.mark.parametrize("something", [True, [0, 1], [[0, 0], [True, 0]], ["feed_forward\\.mul"], {"a": [0, 2]}])
def test_a_recompute_that_names_a_layer_is_kept(something):
    """Recompute settings that ask for a layer are kept as they are."""
    assert RecomputeConfig(recompute=something).recompute == something


def test_a_recompute_typed_as_false_asks_for_nothing():
    """--recompute False and --select-recompute [0,0] on a command line do not stop a run."""
    assert stops(reading("--recompute False --select-recompute [0,0]")) == []


@pytest.mark.parametrize(
    "content, errors",
    [
        (
            sections(parallel_config={"model_parallel": 3}),
            [
                "model_config.num_attention_heads 4: must be a multiple of parallel_config.model_parallel 3",
                "model_config.num_query_groups (--num-query-groups) 4: must be a multiple",
                "model_config.vocab_size 512: must be a multiple of parallel_config.model_parallel 3",
                "model_config.ffn_hidden_size (--ffn-hidden-size) 256: must be a multiple",
            ],
        ),
        (
            {**MEGATRON, "lr": None, "train_iters": None},
            ["lr (--lr): must be given", "train_iters (--train-iters) or train_samples (--train-samples) or num_train"],
        ),
        (
            sections(optimizer_config={"betas": [0.9, 3], "learning_rate": 1e-3}, training_config={"train_iters": 2}),
            ["optimizer_config.betas 3: must be at least 0 and below 1"],
        ),
    ],
)
def test_findings_beside_a_command_line_name_the_files_keys(content, errors, tmp_path):
    """Errors about a --yaml-cfg name the file's keys; a value that neither file nor command line gives is named by its
    flag, too."""
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(content))
    found = list(map(str, stops(read(["--yaml-cfg", str(path), "--mock-data"]))))
    assert len(found) == len(errors)
    assert all(error.startswith(start) for error, start in zip(found, errors, strict=True)), found
