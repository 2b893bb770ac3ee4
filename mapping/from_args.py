"""From an argument namespace to config objects: fields with a flag of their own are copied, the others derived here."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from mapping.flags import MAPPED, ROWS
from mapping.vocabulary import padded_vocabulary, vocabulary
from parallel_core.config import (
    AllConfig,
    ConfigError,
    DatasetConfig,
    FlashAttentionConfig,
    LoraConfig,
    ModelConfig,
    MoEConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
)
from parallel_core.config.base import Invalid, complain, gather_errors

SECTIONS = {"training_config": TrainingConfig, "optimizer_config": OptimizerConfig, "parallel_config": ParallelConfig,
            "dataset_config": DatasetConfig, "moe_config": MoEConfig, "lora_config": LoraConfig,
            "model_config": ModelConfig}

FALLBACK_DESTS = {"norm_epsilon": "layernorm_epsilon", "apply_layernorm_1p": "layernorm_zero_centered_gamma"}
"""Arguments that newer Megatron versions keep under another name than their flag's."""


class Arguments:
    """Reads a namespace; an argument that it does not have is none."""

    def __init__(self, args: Namespace, look_at_files: bool) -> None:
        self._args = args
        self.look_at_files = look_at_files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name, getattr(self._args, FALLBACK_DESTS.get(name, ""), None))


def hidden_act(args: Arguments) -> str | None:
    chosen = {"swiglu": args.swiglu, "squared_relu": args.squared_relu}
    return next((name for name, on in chosen.items() if on), args.hidden_act)


def normalization(args: Arguments) -> str | None:
    return "FusedRMSNorm" if args.use_fused_rmsnorm else args.normalization


def position_embedding_type(args: Arguments) -> str | None:
    return "rope" if args.use_rotary_position_embeddings else args.position_embedding_type


def half_type(args: Arguments) -> str | None:
    return "bfloat16" if args.bf16 else "float16" if args.fp16 else None


def bias_of(own_flag: str) -> Callable[[Arguments], bool | None]:
    """A bias is there with all biases, or by its own flag."""
    return lambda args: True if getattr(args, own_flag) else args.add_bias_linear


DERIVED: dict[str, Callable[[Arguments], Any]] = {
    "model_config.vocab_size": padded_vocabulary,
    "model_config.unpadded_vocab_size": vocabulary,
    "model_config.num_query_groups": lambda args: args.num_query_groups if args.group_query_attention else None,
    "model_config.hidden_act": hidden_act,
    "model_config.normalization": normalization,
    "model_config.position_embedding_type": position_embedding_type,
    "model_config.use_rotary_embedding": lambda args: position_embedding_type(args) == "rope",
    "model_config.qkv_has_bias": bias_of("add_qkv_bias"),
    "model_config.out_proj_has_bias": bias_of("add_dense_bias"),
    "model_config.use_final_norm": lambda args: not args.no_post_layer_norm,
    "model_config.params_dtype": lambda args: args.params_dtype or half_type(args),
    "model_config.compute_dtype": lambda args: args.compute_dtype or half_type(args),
    "optimizer_config.betas": lambda args: (0.9 if args.adam_beta1 is None else args.adam_beta1,
                                            0.999 if args.adam_beta2 is None else args.adam_beta2),
    "parallel_config.world_size": lambda args: args.world_size,
}
"""Fields that follow from several arguments; none: the field keeps its default."""


def field_values(args: Namespace, look_at_files: bool = True) -> dict[str, Any]:
    """Target -> value, for every config field that the arguments, and a tokenizer's files, say something of."""
    reader = Arguments(args, look_at_files)
    values = {row.target: getattr(reader, row.dest) for row in ROWS if row.status == MAPPED and row.target}
    values |= {target: derive(reader) for target, derive in DERIVED.items()}
    return {target: value for target, value in values.items() if value is not None}


def build(values: dict[str, Any]) -> AllConfig:
    """The config of the given target -> value, which must name every field without a default."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    flash_attention: dict[str, Any] = {}
    for target, value in values.items():
        section, _, name = target.partition(".")
        if name.startswith("fa_config."):
            flash_attention[name.removeprefix("fa_config.")] = value
        else:
            sections[section][name] = value
    sections["model_config"]["fa_config"] = FlashAttentionConfig(**flash_attention)
    for name, value in missing_fields(sections["model_config"]):
        sections["model_config"][name] = value
    return AllConfig(**{name: cls(**sections[name]) for name, cls in SECTIONS.items()})


def missing_fields(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Complains of what a model cannot do without, and stands in for it so that the other rules still speak."""
    for entry in fields(ModelConfig):
        if entry.default is MISSING and entry.default_factory is MISSING and entry.name not in given:
            flag = entry.metadata["flag"]
            complain([f"{flag}: must be given" if entry.name != "vocab_size" else
                      "--vocab-size: must be given, or a tokenizer whose files say it"])
            yield entry.name, Invalid()


def build_with_errors(values: dict[str, Any]) -> tuple[AllConfig, list[str]]:
    """The config and everything that is wrong with it."""
    with gather_errors() as errors:
        config = build(values)
    return config, errors


def init_configs_from_args(args: Namespace) -> AllConfig:
    """The config of an argument namespace, ours or one of Megatron's own parser; the namespace is left as it is.

    Raises `ConfigError` (a `ValueError`) with every finding.
    """
    config, errors = build_with_errors(field_values(args))
    if errors:
        raise ConfigError(errors)
    return config
