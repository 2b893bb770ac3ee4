"""Whether two configurations describe the same network, beyond what shapes of parameters tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parallel_core.checkpoint.convert.settings import SECTIONS, get, options
from parallel_core.config import SlidingWindowConfig
from parallel_core.rope_scaling import ORIGINAL_LENGTHS

_ALWAYS = (
    "normalization", "norm_epsilon", "apply_layernorm_1p", "qk_layernorm", "use_sandwich_norm", "use_final_norm",
    "apply_residual_connection_post_norm", "hidden_act", "bias_gelu_fusion", "kv_channels", "position_embedding_type",
    "rotary_percent", "rotary_base", "rotary_interleaved", "rotary_seq_len_interpolation_factor", "rope_scaling.type",
    "sliding_window.size", "sliding_window.skip_freq", "multi_latent_attention.enabled", "embedding_layernorm",
    "qkv_has_bias", "out_proj_has_bias", "mlp_has_bias", "output_layer_bias", "scales.embedding", "scales.residual",
    "scales.logits", "scales.logit_cap", "scales.attention_cap", "scales.attention", "num_attention_heads",
    "num_query_groups", "num_experts", "sparse_attention.variant",
)  # fmt: skip
"""Settings that change what a network computes."""

_WITH_EXPERTS = (
    "moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate",
    "moe_router_topk", "moe_router_score_function", "moe_router_pre_softmax", "moe_router_topk_scaling_factor",
    "moe_router_num_groups", "moe_router_group_topk", "moe_router_group_score_topk", "moe_router_enable_expert_bias",
)  # fmt: skip
_WITH_LATENTS = tuple(
    f"multi_latent_attention.{name}"
    for name in ("qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "latent_norm_epsilon")
)
_WITH_LLAMA3 = tuple(
    f"rope_scaling.{name}"
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
)
_WITH_DYNAMIC = ("rope_scaling.original_max_position_embeddings",)
_WITH_YARN = (
    *(f"rope_scaling.{name}" for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
    "rope_scaling.original_max_position_embeddings",
)


def _has_experts(config: Mapping[str, Any]) -> bool:
    return get(config, "moe_config.num_experts") is not None


def _has_latents(config: Mapping[str, Any]) -> bool:
    return bool(get(config, "model_config.multi_latent_attention.enabled"))


def _scaling(config: Mapping[str, Any]) -> str | None:
    """How positions are stretched; by YaRN's factor of one, Megatron's default in latent attention, they are not."""
    kind: str | None = get(config, "model_config.rope_scaling.type")
    path = "multi_latent_attention.rotary_scaling_factor" if _has_latents(config) else "rope_scaling.factor"
    return None if kind == "yarn" and get(config, f"model_config.{path}") == 1 else kind


def _is_scaled(kind: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda config: _scaling(config) == kind


_IN_FORCE: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], bool]], ...] = (
    (_ALWAYS, lambda _: True),
    (_WITH_EXPERTS, _has_experts),
    (_WITH_LATENTS, _has_latents),
    (_WITH_LLAMA3, _is_scaled("llama3")),
    (_WITH_YARN, _is_scaled("yarn")),
    (_WITH_DYNAMIC, _is_scaled("dynamic")),
    (("rope_scaling.factor",), lambda config: _scaling(config) in ("yarn", "dynamic") and not _has_latents(config)),
    (
        ("multi_latent_attention.rotary_scaling_factor",),
        lambda config: _has_latents(config) and _is_scaled("yarn")(config),
    ),
    (
        ("sparse_attention.dsa_indexer_topk",),
        lambda config: get(config, "model_config.sparse_attention.variant") is not None,
    ),
    (
        ("multi_token_prediction.share_embedding_and_output_weight",),
        lambda config: bool(get(config, "model_config.multi_token_prediction.num_layers")),
    ),
)
"""Settings, and of which networks they change something."""

OF_NETWORK = (*(name for names, _ in _IN_FORCE for name in names), "moe_router_norm_topk_prob")
"""All settings that shape what some network computes."""


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(path, flag, value, other value) of settings in which two whole configurations describe different networks."""
    for start, cls in SECTIONS.items():
        for path, flag, _ in options(cls, start):
            name = path.removeprefix(f"{start}.")
            if any(name in names and acts(one) for names, acts in _IN_FORCE):
                values = _meant(name, path, one), _meant(name, path, other)
                if not agree(*values):
                    yield path, flag, *values


def agree(one: Any, other: Any) -> bool:
    """Whether two settings mean the same network: a fused norm computes what the plain one does."""
    return _plain(one) == _plain(other)


def _plain(value: Any) -> Any:
    return "RMSNorm" if value == "FusedRMSNorm" else value


def _meant(name: str, path: str, config: Mapping[str, Any]) -> Any:
    """A setting as it acts: what counts where there is none, and one form of what can be said in several."""
    value = get(config, path)
    return _MEANINGS[name](value, config) if name in _MEANINGS else value


def layers_with_experts(frequency: int | list[int], layers: int) -> list[int]:
    """--moe-layer-freq as one number for each layer: 1 where it has experts."""
    return [int(layer % frequency == 0) for layer in range(layers)] if isinstance(frequency, int) else list(frequency)


def layers_with_window(size: int | None, skip_freq: int | list[int] | None, layers: int) -> list[int]:
    """--window-attn-skip-freq as one number for each layer: 1 where it has the window."""
    window = SlidingWindowConfig(size=size, skip_freq=skip_freq)
    return [int(size is not None and window.is_in(layer)) for layer in range(layers)]


def _layers(config: Mapping[str, Any]) -> int:
    count: int = get(config, "model_config.num_layers")
    return count


def score_of_group(value: int | None, config: Mapping[str, Any]) -> int | None:
    """By how many of its experts a group is chosen; none: groups limit nothing."""
    chosen, groups = (get(config, f"moe_config.moe_router_{name}") for name in ("group_topk", "num_groups"))
    if not chosen or chosen >= groups:
        return None
    return value or get(config, "moe_config.moe_router_topk") // chosen


_MEANINGS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "rope_scaling.type": lambda _, config: _scaling(config),
    "rope_scaling.original_max_position_embeddings": lambda value, config: (
        ORIGINAL_LENGTHS.get(_scaling(config) or "", get(config, "model_config.max_position_embeddings"))
        if value is None
        else value
    ),
    "sliding_window.skip_freq": lambda value, config: layers_with_window(
        get(config, "model_config.sliding_window.size"), value, _layers(config)
    ),
    "multi_latent_attention.latent_norm_epsilon": lambda value, config: (
        value or get(config, "model_config.norm_epsilon")
    ),
    "moe_layer_freq": lambda value, config: layers_with_experts(value, _layers(config)),
    "moe_router_topk_scaling_factor": lambda value, _: value or 1.0,
    "moe_router_num_groups": lambda value, _: value or 1,
    "moe_router_group_score_topk": score_of_group,
    "moe_router_pre_softmax": lambda value, config: (
        value
        and not get(config, "moe_config.moe_router_norm_topk_prob")  # scores over all, divided by the chosen ones' sum
    ),
}
