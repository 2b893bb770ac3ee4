"""YAML keys of MindFormers and MindSpeed-Core-MS: each fills a field or does nothing for a reason."""

from __future__ import annotations

import pytest
import yaml

from mapping import ConfigError, init_configs_from_dict
from mapping.readers.callbacks import CALLBACKS
from mapping.readers.earlier_keys import EARLIER
from mapping.readers.yaml_file import values_of
from parallel_core.config.tree import path_of
from tests.support.mapping.variations import value_of
from tests.support.mapping.yaml_files import nested, sections

RUNNER = """
model:
  model_config: {type: LlamaConfig, vocab_size: 512, num_layers: 4, hidden_size: 64, num_attention_heads: 4,
                 seq_length: 64, use_flash_attention: True, use_fused_rope: True, use_fused_swiglu: True}
  arch: {type: LlamaForCausalLM}
runner_config: {epochs: 3, batch_size: 4, sink_mode: True, sink_size: 2, gradient_accumulation_steps: 4}
runner_wrapper:
  type: MFTrainOneStepCell
  scale_sense: {type: AdaptiveLossScaleUpdateCell, loss_scale_value: 4294967296, scale_factor: 2, scale_window: 20,
                max_scale_window: 1000, min_scale_window: 20}
  use_clip_grad: True
  max_grad_norm: 0.5
moe_config: {expert_num: 8, capacity_factor: 2.0, use_gmm: True, enable_gmm_safe_tokens: True,
             save_token_distribution: true, enable_cold_hot_expert: True, hot_expert_num: 1, cold_token_percent: 0.7}
callbacks:
- {type: SummaryMonitor, summary_dir: ../summary_dir, collect_tensor_freq: 5, collect_freq: 1,
   keep_default_action: False, export_options: {tensor_format: npy}}
- {type: CheckpointMonitor, save_checkpoint_steps: 7}
callback:
- {type: MoEDropRateCallback, expert_num: 8, capacity_factor: 1.5, num_layers: 4, mtp_depth: 0}
recompute_config: {recompute: [3], select_recompute: False, parallel_optimizer_comm_recompute: True}
parallel: {full_batch: True}
ENABLE_LAZY_INLINE: 1
"""


def test_a_file_with_a_runner():
    """A MindFormers file with runner, wrapper, callbacks and experts fills the fields of its keys."""
    config = init_configs_from_dict(yaml.safe_load(RUNNER))
    wanted = {
        "dataset_config.batch_size": 4,
        "micro_batch_num": 4,
        "clip_grad": 0.5,
        "apply_rope_fusion": True,
        "apply_swiglu_fusion": True,
        "use_flash_attention": True,
        "loss_scale_window": 20,
        "max_loss_scale_window": 1000,
        "min_loss_scale_window": 20,
        "num_experts": 8,
        "moe_expert_capacity_factor": 2.0,
        "moe_grouped_gemm": True,
        "enable_gmm_safe_tokens": True,
        "hot_expert_num": 1,
        "save_interval": 7,
        "moe_log_drop_rate": True,
        "moe_drop_rate_capacity_factor": 1.5,
        "save_token_distribution": True,
        "summary_dir": "../summary_dir",
        "summary_collect_freq": 5,
        "parallel_optimizer_comm_recompute": True,
        "select_recompute": None,
    }
    assert {name: value_of(config, path_of(name)) for name in wanted} == wanted


def test_a_whole_run_in_the_nested_layout():
    """The nested layout takes, beside its own trees, a run in `train_config` and whole sections."""
    content = nested(parallelization={"pipeline": {"micro_batch_size": 2, "micro_batch_num": 8}})
    content["train_config"] = {"ms_training_config": {"training_iters": 10, "save_interval": 5}, "learning_rate": 2e-3}
    content |= {"optimizer_config": {"weight_decay": 0.1}, "dataset_config": {"data_path": ["x"]}}
    content["training_config"] = {"output_dir": "out", "load_checkpoint": "in"}
    content["model_config"]["use_fused_rope"] = True
    config = init_configs_from_dict(content)
    assert (config.dataset_config.batch_size, config.dataset_config.global_batch_size) == (2, 16)
    assert (config.optimizer_config.learning_rate, config.optimizer_config.weight_decay) == (2e-3, 0.1)
    training = config.training_config
    assert (training.training_iters, training.save_interval, training.output_dir) == (10, 5, "out")
    assert training.load_checkpoint == "in" and config.dataset_config.data_path == ["x"]


@pytest.mark.parametrize(
    "section, content, field, value",
    [
        ("parallel_config", {"zero_level": "z2"}, "zero_stage", 2),
        ("optimizer_config", {"zero_config": {"cpu_offload": True}}, "cpu_offload_optimizer", True),
        ("optimizer_config", {"zero_config": {"param_resident": True}}, "parallel_optimizer_comm_recompute", False),
        ("optimizer_config", {"param_resident": True}, "parallel_optimizer_comm_recompute", False),
        ("optimizer_config", {"param_resident": False}, "parallel_optimizer_comm_recompute", True),
        (
            "parallel_config",
            {"param_resident": True, "param_resident_rate": 1.0},
            "parallel_optimizer_comm_recompute",
            False,
        ),
        (
            "parallel_config",
            {"recompute_config": {"parallel_optimizer_comm_recompute": False}},
            "parallel_optimizer_comm_recompute",
            False,
        ),
        ("parallel_config", {"model_parallel": 2}, "tensor_model_parallel_size", 2),
        ("parallel_config", {"recompute_config": {"recompute": [1]}}, "recompute_config.recompute", (1,)),
        (
            "parallel_config",
            {"recompute_config": {"select_recompute_exclude": ["mlp"]}},
            "select_recompute_exclude",
            ("mlp",),
        ),
        ("model_config", {"offset": 0}, "offset", None),
        ("model_config", {"pp_interleave_num": 1}, "virtual_pipeline_model_parallel_size", 1),
        ("model_config", {"distribute_saved_activations": True}, "recompute_slice_activation", True),
        ("dataset_config", {"shuffle": True}, "dataloader_type", "cyclic"),
        ("dataset_config", {"train_samples": 32}, "train_samples", 32),
        (
            "training_config",
            {"grad_clip_kwargs": {"grad_clip_type": "ClipGlobalNorm", "clip_value": 2.0}},
            "clip_grad",
            2,
        ),
        ("training_config", {"load_checkpoint": ""}, "load_checkpoint", None),
        ("model_config", {"rotary_config": {"rotary_base": 500}}, "rotary_base", 500),
        ("model_config", {"position_embedding_type": "absolute"}, "position_embedding_type", "learned_absolute"),
        ("model_config", {"fa_config": {"keep_prob": 0.75}}, "attention_dropout_rate", 0.25),
        ("model_config", {"fa_config": {"keep_prob": "9e-1"}}, "attention_dropout_rate", 1 - 0.9),
        ("model_config", {"attention_dropout": "1e-1", "fa_config": {"keep_prob": 0.9}}, "attention_dropout_rate", 0.1),
        ("model_config", {"attention_dropout": 0.9, "fa_config": {"keep_prob": 0.1}}, "attention_dropout_rate", 0.9),
        ("model_config", {"fa_config": {"pre_tokens": 64}}, "pre_tokens", 1048576),
        ("model_config", {"fa_config": {"pre_tokens": 63}}, "pre_tokens", 63),
        ("model_config", {"residual_connection_dtype": "float32"}, "fp32_residual_connection", False),
        ("optimizer_config", {"learning_rate_scheduler_kwargs": {"warmup_steps": 5}}, "lr_warmup_iters", 5),
        ("optimizer_config", {"learning_rate_scheduler_kwargs": {"end_learning_rate": 1e-5}}, "min_lr", 1e-5),
        ("optimizer_config", {"learning_rate_scheduler_kwargs": {"use_cosine": True}}, "lr_decay_style", "cosine"),
        (
            "optimizer_config",
            {"learning_rate_scheduler_kwargs": {"use_cosine": False, "power": 1.0}},
            "lr_decay_style",
            "linear",
        ),
        (
            "training_config",
            {"grad_clip_kwargs": {"grad_clip_type": "GradClipByValue", "clip_value": 2.0}},
            "clip_grad_value",
            2,
        ),
        ("training_config", {"grad_clip_kwargs": {"grad_clip_type": "GradClipByValue"}}, "clip_grad", 0.0),
        ("optimizer_config", {"optimizer_type": "mint.AdamW"}, "optimizer_type", "adam"),
        ("optimizer_config", {"optimizer_type": "AdamWeightDecay"}, "adam_bias_correction", False),
        ("optimizer_config", {"optimizer_type": "PmaAdamW", "fused_algo": "sma"}, "pma_fused_algo", "sma"),
        ("optimizer_config", {"optimizer_type": "PmaAdamW", "interleave_step": 7}, "pma_interleave_step", 7),
        ("optimizer_config", {"no_weight_decay_params": ["bias"]}, "no_weight_decay_params", ["bias"]),
        ("optimizer_config", {"no_weight_decay_params": ["Default_Setup"]}, "no_weight_decay_params", None),
        ("lora_config", {"use_lora": True, "target_cells": [{"target_cells": [".*out_proj"]}]}, "lora_rank", 8),
        ("lora_config", {"use_lora": False, "lora_rank": 8, "target_cells": [{"target_cells": ["x"]}]}, "lora_rank", 0),
        (
            "lora_config",
            {"use_lora": True, "target_cells": [{"target_cells": [".*qkv", r".*\.dense", "mlp.dense_h_to_4h"]}]},
            "target_modules",
            [".*qkv", r".*\.linear_proj", "mlp.linear_fc1"],
        ),
        (
            "lora_config",
            {"use_lora": True, "target_cells": [{"target_cells": [".*qkv"]}, {"cell": "0.*qkv", "rank": 4}]},
            "lora_config.cells",
            [{"cell": "0.*qkv", "rank": 4}],
        ),
        ("moe_config", {"num_experts": 1}, "num_experts", None),
        ("moe_config", {"hot_expert_num": 2}, "hot_expert_num", 0),
        ("runner_wrapper", {"use_clip_grad": False, "max_grad_norm": 1.0}, "clip_grad", 0.0),
        ("runner_wrapper", {"use_clip_grad": None}, "clip_grad", 0.0),
    ],
)
def test_a_key_of_the_earlier_system_fills_its_field(section, content, field, value):
    """Each key of MindFormers' in the layout of sections fills the config field."""
    assert value_of(init_configs_from_dict(sections(**{section: content})), path_of(field)) == value


@pytest.mark.parametrize(
    "section, content, rule",
    [
        ("model_config", {"softmax_compute_dtype": "nonsense"}, "must be one of float32"),
        ("model_config", {"layernorm_compute_type": "nonsense"}, "must be one of float32"),
        ("runner_wrapper", {"use_clip_grad": "False"}, "must be true or false"),
        ("recompute_config", {"recompute": "x"}, "must be true, false, a list, or patterns with"),
        ("runner_wrapper", {"scale_sense": 1024}, "must hold keys with values"),
        ("runner_wrapper", {"scale_sense": {"type": "FixedLossScaleUpdateCell"}}, "needs a loss_scale_value above 0"),
        (
            "runner_wrapper",
            {"scale_sense": {"type": "FixedLossScaleUpdateCell", "loss_scale_value": 0}},
            "needs a loss_scale_value above 0",
        ),
        ("runner_wrapper", {"scale_sense": {"loss_scale_value": float("nan")}}, "must be a finite number"),
        ("model_config", {"mask_func_type": "other"}, "must be one of attn_mask_add, attn_mask_fill"),
        ("model_config", {"init_method": "xavier"}, "must be one of normal"),
        ("model_config", {"attention_dropout": 0.5, "fa_config": {"keep_prob": 0.9}}, "must be 1 - attention_dropout"),
        ("model_config", {"attention_dropout": "5e-1", "fa_config": {"keep_prob": 0.9}}, "must be 1 - attention_dropo"),
        (
            "model_config",
            {"attention_dropout": ["x"], "fa_config": {"keep_prob": 0.9}},
            "attention_dropout ['x']: must",
        ),
        ("model_config", {"fa_config": {"keep_prob": [0.9]}}, "must be 1 - attention_dropout"),
        ("parallel_config", {"recv_dtype": "bfloat16"}, "must be one of float32"),
        ("parallel_config", {"zero_level": "z9"}, "must be one of z1, z2, z3"),
        (
            "training_config",
            {"best_metric_comparison": "less"},
            "keeping the best checkpoint is not done",
        ),
        ("training_config", {"grad_clip_kwargs": {"grad_clip_type": "ByAngle"}}, "must be one of ClipGlobalNorm, Grad"),
        ("training_config", {"grad_clip_kwargs": {"grad_clip_type": ["x"]}}, "must be one of ClipGlobalNorm, Grad"),
        ("lora_config", {"target_cells": [{"rank": 4}]}, "must list entries {target_cells"),
        ("callbacks", [{"type": "NoSuchCallback"}], "knows MoEDropRateCallback"),
        ("callbacks", [["MFLossMonitor"]], "knows MoEDropRateCallback"),
        ("callbacks", {"type": ["MFLossMonitor"]}, "knows MoEDropRateCallback"),
        ("callbacks", [{"type": "MoEDropRateCallback", "expert_num": 99}], "[0].expert_num 99: the model has 0"),
        ("callback", {"type": "MoEDropRateCallback", "num_layers": 77}, ".num_layers 77: the model has "),
        ("callback", [{"type": "MoEDropRateCallback", "mtp_depth": 1}], "[0].mtp_depth 1: the model has 0"),
        ("callbacks", [{"type": "ColdHotExpertMonitor", "hidden_size": 77}], "[0].hidden_size 77: the model has "),
        ("callbacks", [{"type": "ColdHotExpertMonitor", "expert_parallel": 8}], "[0].expert_parallel 8: the model has"),
        ("callbacks", [{"type": "ColdHotExpertMonitor", "save_steps": 8}], "knows hidden_size, "),
        ("callbacks", [{"type": "SummaryMonitor", "collect_freq": 0}], "[0].collect_freq 0: must be at least 1"),
        ("callbacks", [{"type": "SummaryMonitor", "collect_tensor_freq": 0}], "[0].collect_tensor_freq 0: must be at"),
        (
            "callbacks",
            [{"type": "SummaryMonitor", "collect_freq": 0, "collect_tensor_freq": 1}],
            "[0].collect_freq 0: must be a whole number, at least 1",
        ),
        (
            "callback",
            {"type": "CheckpointMonitor", "save_checkpoint_steps": "x"},
            ".save_checkpoint_steps 'x': must be",
        ),
        ("optimizer_config", {"betas": [0.9]}, "betas [0.9]: must be 2 numbers"),
        ("optimizer_config", {"betas": [0.9, 3]}, "betas 3: must be at least 0 and below 1"),
        ("model_config", {"params_dtype": "int8"}, "params_dtype 'int8': must be `float32`"),
        ("moe_config", {"num_experts": 4, "enable_cold_hot_expert": True}, "needs hot_expert_num"),
        ("moe_config", {"num_experts": 4, "enable_cold_hot_expert": True, "hot_expert_num": 0}, "needs hot_expert_num"),
    ],
)
def test_what_a_key_cannot_say_is_refused_by_its_name(section, content, rule):
    """A wrong value is one error that begins with the file's key."""
    with pytest.raises(ConfigError) as caught:
        init_configs_from_dict(sections(**{section: content}))
    (error,) = caught.value.errors
    assert error.startswith(section) and rule in error


@pytest.mark.parametrize("section", ["parallel_config", "dataset_config"])
@pytest.mark.parametrize(
    ("steps", "micro_batches", "stages", "counts"),
    [(4, 2, 2, 2), (4, 1, 2, 1), (1, 2, 1, 2), (4, 1, 1, 4), (4, None, 2, 4), (1, 1, 1, 1), (4, 4, 1, 4)],
)
def test_accumulation_steps_are_micro_batches_unless_a_pipeline_has_its_own(
    section, steps, micro_batches, stages, counts
):
    """Micro-batches of a step are gradient_accumulation_steps, but micro_batch_num in a pipeline, as documented; a 1,
    the default, contradicts nothing."""
    content = sections(**{section: {"micro_batch_num": micro_batches}})
    content.setdefault("parallel_config", {})["pipeline_stage"] = stages
    config = init_configs_from_dict({**content, "runner_config": {"gradient_accumulation_steps": steps}})
    assert config.dataset_config.micro_batch_num == counts


def test_a_key_does_nothing_where_its_flag_does_not(capsys):
    """`divided_by` beside `padded_size`, as the documents' own file has both, is ignored with a line."""
    content = nested()
    content["model_config"]["llm"]["tokenizer"] |= {"padded_size": 160, "divided_by": 32}
    assert init_configs_from_dict(content).model_config.vocab_size == 160
    assert "ignored: model_config.llm.tokenizer.divided_by: no effect: the rows of" in capsys.readouterr().out


@pytest.mark.parametrize("key", sorted(EARLIER))
def test_every_key_is_known_and_is_no_name_of_a_field_twice_over(key):
    """No key of the table of earlier keys is answered with "no such key"."""
    content: object = False
    for name in reversed(key.split(".")):
        content = {name: content}
    _, findings = values_of(content, "x.yaml")
    assert not [finding for finding in findings if "no such key" in finding.rule]


def test_replicas_are_never_summed():
    """`grad_allreduce_op: sum` is refused with more than one replica, whose gradients would be summed where the losses
    are averaged."""
    key = "optimizer_config.zero_config.grad_allreduce_op"
    summed, averaged = (sections(optimizer_config={"zero_config": {"grad_allreduce_op": op}}) for op in ("sum", "mean"))
    assert init_configs_from_dict(averaged, world_size=2).parallel_config.data_parallel_size == 2
    assert init_configs_from_dict(summed, world_size=1).parallel_config.data_parallel_size == 1
    with pytest.raises(ConfigError) as caught:
        init_configs_from_dict(summed, world_size=2)
    assert caught.value.errors == [
        f"{key} sum: the gradients of 2 replicas are averaged, as their losses are; write mean"
    ]


@pytest.mark.parametrize("kind", sorted(CALLBACKS))
def test_every_callback_may_stand_without_options(kind):
    """Each known callback of a file is read without options."""
    given, findings = values_of({"callbacks": [{"type": kind}]}, "x.yaml")
    assert given and not findings


@pytest.mark.parametrize("name", ["lazy_inline", "ENABLE_LAZY_INLINE", "ENABLE_LAZY_INLINE_NO_PIPELINE"])
@pytest.mark.parametrize("section", [None, "model_config", "parallel_config"])
def test_lazy_inline_does_nothing_and_says_so(name, section, capsys):
    """lazy_inline, in each spelling and section, leaves the config as it is and prints why."""
    content = sections(**({name: True} if section is None else {section: {name: True}}))
    assert init_configs_from_dict(content) == init_configs_from_dict(sections())
    assert f"{name}: the dynamic graph is not compiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content, said",
    [
        ({"recompute": [3, 0]}, ["stage 0 has 2 layers, not 3"]),
        ({"recompute": [True, 3]}, ["stage 1 has 2 layers, not 3"]),
        ({"select_recompute": {"mlp": [3, 0]}}, ["mlp: stage 0 has 2 layers, not 3"]),
        ({"recompute": [[0, 2]]}, []),
        ({"recompute": [[3, 2]]}, ["stage 0, chunk 0, has 2 layers, not 3"]),
        ({"recompute": [2, 0]}, []),
        ({"recompute": True}, []),
    ],
)
def test_more_layers_than_a_stage_has_are_said(content, said, capsys):
    """A recompute table that asks a stage for more layers than it has prints a line for that stage."""
    stages = {"pipeline_model_parallel_size": 2}
    init_configs_from_dict(sections(recompute_config=content, parallel_config=stages))
    key = f"recompute_config.{next(iter(content))}"
    lines = [line for line in capsys.readouterr().out.splitlines() if "the rest asks for nothing" in line]
    assert lines == [f"{key}: {clause}: the rest asks for nothing" for clause in said]
