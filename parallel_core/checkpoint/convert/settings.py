"""Settings by path: "model_config.rope_scaling.factor" is a field of a section inside a section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from parallel_core.config import AllConfig, ModelConfig, MoEConfig, OptimizerConfig, ParallelConfig, TrainingConfig
from parallel_core.config.base import Config, has_type
from parallel_core.rope_scaling import LLAMA3_ORIGINAL_LENGTH

SECTIONS: dict[str, type[Config]] = {"model_config": ModelConfig, "moe_config": MoEConfig}
"""The sections that say what a network is."""

_MISSING = object()


def get(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The setting at a path."""
    value: Any = settings
    for name in path.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
    return default if value is _MISSING else value


def put(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set the setting at a path."""
    *sections, name = path.split(".")
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def options(cls: type[Config], start: str) -> Iterator[tuple[str, str, Any]]:
    """(path, flag, annotated type) of every option of a section and of the sections inside it."""
    hints = get_type_hints(cls)
    for entry in fields(cls):
        if "flag" in entry.metadata:
            yield f"{start}.{entry.name}", entry.metadata["flag"], hints[entry.name]
        elif "sibling" not in entry.metadata and _is_section(hints[entry.name]):
            yield from options(hints[entry.name], f"{start}.{entry.name}")


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Config)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value may stand in a field of this type."""
    return value is not None and has_type(value, hint)


OF_NETWORK = (
    "normalization", "norm_epsilon", "apply_layernorm_1p", "qk_layernorm", "use_sandwich_norm", "use_final_norm",
    "apply_residual_connection_post_norm", "hidden_act", "bias_gelu_fusion", "kv_channels", "position_embedding_type",
    "rotary_percent", "rotary_base", "rotary_interleaved", "rotary_seq_len_interpolation_factor", "rope_scaling.type",
    "sliding_window.size", "multi_latent_attention.enabled", "embedding_layernorm", "qkv_has_bias", "out_proj_has_bias",
    "mlp_has_bias", "output_layer_bias", "scales.embedding", "scales.residual", "scales.logits", "scales.logit_cap",
    "scales.attention_cap", "scales.attention", "num_attention_heads", "num_query_groups", "num_experts",
    "moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate",
    "moe_router_topk", "moe_router_score_function", "moe_router_pre_softmax", "moe_router_num_groups",
    "moe_router_group_topk", "moe_router_enable_expert_bias",
)  # fmt: skip
"""Settings that change what a network computes."""
_OF_EXPERTS = "moe_config."
_OF_LLAMA3 = tuple(
    f"rope_scaling.{name}"
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(path, flag, value, other value) of settings in which two whole configurations describe different networks."""
    for start, cls in SECTIONS.items():
        for path, flag, _ in options(cls, start):
            name = path.removeprefix(f"{start}.")
            values = _meant(name, get(one, path)), _meant(name, get(other, path))
            if _counts(path, name, one) and not agree(*values):
                yield path, flag, *values


def _counts(path: str, name: str, ours: Mapping[str, Any]) -> bool:
    """Whether a setting changes the network that `ours` describes."""
    if path.startswith(_OF_EXPERTS) and name != "num_experts" and get(ours, "moe_config.num_experts") is None:
        return False
    if name in _OF_LLAMA3:
        return get(ours, "model_config.rope_scaling.type") == "llama3"
    return name in OF_NETWORK


def agree(one: Any, other: Any) -> bool:
    """Whether two settings mean the same network: a fused norm computes what the plain one does."""
    return _plain(one) == _plain(other)


def _plain(value: Any) -> Any:
    return "RMSNorm" if value == "FusedRMSNorm" else value


def _meant(name: str, value: Any) -> Any:
    """A setting, or what counts where there is none."""
    is_length = name == "rope_scaling.original_max_position_embeddings"
    return LLAMA3_ORIGINAL_LENGTH if is_length and value is None else value


def config_of(settings: Mapping[str, Mapping[str, Any]]) -> AllConfig:
    """The configuration of a model's settings, on one process. Raises `ConfigError` if they do not go together."""
    sections = {name: _section(cls, settings.get(name, {})) for name, cls in SECTIONS.items()}
    return AllConfig(
        **sections,
        optimizer_config=OptimizerConfig(**settings.get("optimizer_config", {})),
        parallel_config=ParallelConfig(),
        training_config=TrainingConfig(),
    )


def _section(cls: type[Config], values: Mapping[str, Any]) -> Any:
    hints = get_type_hints(cls)
    return cls(**{name: _section(hints[name], v) if isinstance(v, Mapping) else v for name, v in values.items()})
