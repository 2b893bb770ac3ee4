"""The nested schema of `examples/gpt/pretrain_gpt_38BV3.yaml`: path -> config fields, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mapping.parser import suggest
from mapping.tree import leaves
from parallel_core.config.base import field_types
from parallel_core.config.training import TrainingConfig

Values = dict[str, Any]


def to(*targets: str) -> Callable[[Any], Values]:
    """The value goes into these fields as it is."""
    return lambda value: dict.fromkeys(targets, value)


def unless(target: str) -> Callable[[Any], Values]:
    """The field is the value's opposite."""
    return lambda value: {target: not value}


def equals(target: str, wanted: Any) -> Callable[[Any], Values]:
    """The field says whether the value is `wanted`."""
    return lambda value: {target: value == wanted}


def compute_dtype(value: str) -> Values:
    return {
        "model_config.compute_dtype": value,
        "training_config.bf16": value == "bfloat16",
        "training_config.fp16": value == "float16",
    }


OPERATORS = {
    "flash_attention": "model_config.use_flash_attention",
    "rope": "model_config.apply_rope_fusion",
    "swiglu": "model_config.apply_swiglu_fusion",
    "masked_softmax": "model_config.masked_softmax_fusion",
}
"""Names in the lists of fused and unfused operators; rmsnorm and gradient_accumulation are treated apart."""


def operators(fused: bool) -> Callable[[Any], Values]:
    """A list of operators with commas that are, or are not, fused."""

    def read(value: str | None) -> Values:
        names = {name.strip() for name in (value or "").split(",")} - {"", "gradient_accumulation"}
        values: Values = {OPERATORS[name]: fused for name in names & OPERATORS.keys()}
        if "rmsnorm" in names and fused:
            values["model_config.normalization"] = "FusedRMSNorm"
        strange = names - OPERATORS.keys() - {"rmsnorm"}
        if strange:
            raise ValueError(
                f"knows {', '.join((*OPERATORS, 'rmsnorm', 'gradient_accumulation'))}, not {', '.join(sorted(strange))}"
            )
        return values

    return read


def nothing(value: Any) -> Values:
    """A key that cannot change the result: a slow tokenizer gives the same ids."""
    return {}


_MODEL, _PARALLEL = "model_config", "parallel_config"
_PIPELINE = "accelerate_config.parallelization.pipeline"
_PRECISION = "accelerate_config.precision"
_BLOCKS = "model_config.llm.blocks"
PATHS: dict[str, Callable[[Any], Values]] = {
    "accelerate_config.parallelization.tensor_parallel": to(f"{_PARALLEL}.tensor_model_parallel_size"),
    "accelerate_config.parallelization.context_parallel": to(f"{_PARALLEL}.context_parallel_size"),
    "accelerate_config.parallelization.expert_parallel": to(f"{_PARALLEL}.expert_model_parallel_size"),
    "accelerate_config.parallelization.use_sequence_parallel": to(f"{_PARALLEL}.sequence_parallel"),
    "accelerate_config.parallelization.use_distributed_optimizer": to("training_config.use_distributed_optimizer"),
    f"{_PIPELINE}.num_stages": to(f"{_PARALLEL}.pipeline_model_parallel_size"),
    f"{_PIPELINE}.layer_list": to(f"{_PARALLEL}.num_layer_list"),
    f"{_PIPELINE}.micro_batch_size": to("dataset_config.batch_size"),
    f"{_PIPELINE}.noop_layers": to(f"{_PARALLEL}.noop_layers"),
    f"{_PIPELINE}.num_layers_per_vpp": to(f"{_PARALLEL}.num_layers_per_virtual_pipeline_stage"),
    f"{_PIPELINE}.virtual_pipeline_model_parallel_size": to(f"{_PARALLEL}.virtual_pipeline_model_parallel_size"),
    f"{_PRECISION}.param_init_dtype": to(f"{_MODEL}.params_dtype"),
    f"{_PRECISION}.compute_dtype": compute_dtype,
    f"{_PRECISION}.softmax_compute_dtype": equals(f"{_MODEL}.attention_softmax_in_fp32", "float32"),
    f"{_PRECISION}.logits_compute_dtype": equals(f"{_MODEL}.fp16_lm_cross_entropy", "float16"),
    f"{_PRECISION}.grad_accumulation_dtype": equals("training_config.accumulate_allreduce_grads_in_fp32", "float32"),
    f"{_PRECISION}.residual-connection": equals(f"{_MODEL}.fp32_residual_connection", "float32"),
    f"{_PRECISION}.fused_operators": operators(True),
    f"{_PRECISION}.nofused_operators": operators(False),
    "model_config.llm.tokenizer.padded_size": to(f"{_MODEL}.vocab_size"),
    "model_config.llm.tokenizer.divided_by": to(f"{_MODEL}.make_vocab_size_divisible_by"),
    "model_config.llm.tokenizer.use_fast": nothing,
    "model_config.llm.embedding.hidden_size": to(f"{_MODEL}.hidden_size"),
    "model_config.llm.embedding.init_std": to(f"{_MODEL}.embedding_init_method_std"),
    "model_config.llm.position.type": lambda value: {
        f"{_MODEL}.position_embedding_type": value,
        f"{_MODEL}.use_rotary_embedding": value == "rope",
    },
    "model_config.llm.position.max_size": to(f"{_MODEL}.seq_length", f"{_MODEL}.max_position_embeddings"),
    "model_config.llm.position.rope_base": to(f"{_MODEL}.rotary_base"),
    f"{_BLOCKS}.num_layers": to(f"{_MODEL}.num_layers"),
    f"{_BLOCKS}.init_std": to(f"{_MODEL}.init_method_std"),
    f"{_BLOCKS}.sandwich_norm": to(f"{_MODEL}.use_sandwich_norm"),
    f"{_BLOCKS}.layernorm.norm_type": to(f"{_MODEL}.normalization"),
    f"{_BLOCKS}.layernorm.epsilon": to(f"{_MODEL}.norm_epsilon"),
    f"{_BLOCKS}.attention.attention_type": equals(f"{_MODEL}.group_query_attention", "GQA"),
    f"{_BLOCKS}.attention.head_num": to(f"{_MODEL}.num_attention_heads"),
    f"{_BLOCKS}.attention.kv_group_size": to(f"{_MODEL}.num_query_groups"),
    f"{_BLOCKS}.attention.qkv_bias": to(f"{_MODEL}.qkv_has_bias"),
    f"{_BLOCKS}.attention.projection_bias": to(f"{_MODEL}.out_proj_has_bias"),
    f"{_BLOCKS}.attention.dropout_rate": to(f"{_MODEL}.attention_dropout_rate"),
    f"{_BLOCKS}.attention.post_norm_scale": to(f"{_MODEL}.attn_post_norm_scale"),
    f"{_BLOCKS}.ffn.hidden_size": to(f"{_MODEL}.ffn_hidden_size"),
    f"{_BLOCKS}.ffn.activation": to(f"{_MODEL}.hidden_act"),
    f"{_BLOCKS}.ffn.dropout_rate": to(f"{_MODEL}.hidden_dropout_rate"),
    f"{_BLOCKS}.ffn.mlp_bias": to(f"{_MODEL}.mlp_has_bias", f"{_MODEL}.add_bias_linear"),
    f"{_BLOCKS}.ffn.post_norm_scale": to(f"{_MODEL}.ffn_post_norm_scale"),
    "model_config.llm.head.shared_embedding": unless(f"{_MODEL}.untie_embeddings_and_output_weights"),
    **{
        f"train_config.ms_training_config.{name}": to(f"training_config.{name}") for name in field_types(TrainingConfig)
    },
}
"""What each key of the schema says. Later keys win: `fused_operators: rmsnorm` is put after `norm_type`."""


def translate(content: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Target -> value, and a sentence for each unknown key or strange value. Keys without a value say nothing."""
    given = dict(leaves(content))
    errors = [f"{path}: there is no such key{suggest(path, [*PATHS])}" for path in given if path not in PATHS]
    values: Values = {}
    last = f"{_PRECISION}.fused_operators"
    for path in sorted(given.keys() & PATHS.keys(), key=lambda path: (path == last, path)):
        if given[path] is not None:
            try:
                values |= PATHS[path](given[path])
            except ValueError as error:
                errors.append(f"{path}: {error}")
    return values, errors
