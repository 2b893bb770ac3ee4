"""MiniMax-M2 (MiniMax, 2025): layers of experts, attention with norms over all heads together and partly rotated heads.
MiniMax-01 (2025): lightning attention in most layers, and factors of both addends of the residual stream."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields, windows
from parallel_core.checkpoint.convert.huggingface.family import (
    HEAD_NORMS,
    NO_BIAS,
    NO_SHARED,
    OF_ALL_HEADS,
    OF_LLAMA,
    SIGMOID,
    Family,
    Parameter,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.family import MIXTRAL as MIXTRAL_ROWS
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rope import rope
from parallel_core.checkpoint.convert.huggingface.rules import LIGHTNING
from parallel_core.checkpoint.networks import layers_with_states

_PARAMETERS: tuple[Parameter, ...] = (
    *MIXTRAL_ROWS,
    layer("mlp.router.expert_bias", "block_sparse_moe.e_score_correction_bias"),
)
_FIXED: dict[str, Any] = {**OF_LLAMA, **NO_BIAS, **NO_SHARED, **HEAD_NORMS, **OF_ALL_HEADS, **SIGMOID}

FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    rope(partial=True),
    Must("qk_norm_type", ("per_layer", None)),
    Must("use_qk_norm", (True, None)),
    Must("scoring_func", ("sigmoid", None)),
    Field("moe_config.num_experts", "num_local_experts"),
    experts.CHOSEN,
    Field("moe_config.moe_ffn_hidden_size", "intermediate_size"),
    always("moe_config.moe_layer_freq", 1),
)

_FREQUENCY = "model_config.linear_attention.linear_attention_freq"
_KINDS = "full_attention", "linear_attention"
_RESIDUALS = (
    ("attention_residual", "full_attn"),
    ("linear_attention_residual", "linear_attn"),
    ("mlp_residual", "mlp"),
)
_WEIGHTS = "alpha", "beta"
_FACTORS = tuple(f"{theirs}_{which}_factor" for _, theirs in _RESIDUALS for which in _WEIGHTS)


def _layers(config: Mapping[str, Any]) -> Settings:
    """The setting of the kinds of layers: `layer_types` or, without it, attention in every other layer, from the first
    on, and lightning attention in the others."""
    layers = range(config["num_hidden_layers"])
    kinds = config.get("layer_types") or [_KINDS[layer % 2] for layer in layers]
    if {*kinds} - {*_KINDS} or len(kinds) != len(layers):
        raise ValueError(f"config.json: layer_types {kinds}: {_KINDS[0]} or {_KINDS[1]} of each of the layers")
    return {_FREQUENCY: [_KINDS.index(kind) for kind in kinds]}


def _layers_out(ours: Settings) -> Mapping[str, Any]:
    found = layers_with_states(ours[_FREQUENCY], ours["model_config.num_layers"])
    return {"layer_types": [_KINDS[is_linear] for is_linear in found], "block_size": 256}


def _residuals(config: Mapping[str, Any]) -> Settings:
    found: Settings = {}
    for ours, theirs in _RESIDUALS:
        weights = [float(config.get(f"{theirs}_{which}_factor") or 1) for which in _WEIGHTS]
        found[f"model_config.scales.{ours}"] = weights if weights != [1.0, 1.0] else None
    return found


def _residuals_out(ours: Settings) -> Mapping[str, Any]:
    return {
        f"{theirs}_{which}_factor": weight
        for name, theirs in _RESIDUALS
        for which, weight in zip(_WEIGHTS, ours[f"model_config.scales.{name}"] or (1.0, 1.0), strict=True)
    }


LIGHTNING_FIELDS: tuple[AnyField, ...] = (
    *(field for field in fields.SIZES if getattr(field, "key", "") != "intermediate_size"),
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    rope(),
    windows.everywhere(),
    *experts.MIXTRAL,
    Field("moe_config.moe_ffn_hidden_size", "intermediate_size"),
    always("moe_config.moe_layer_freq", 1),
    Group(("num_hidden_layers", "layer_types", "block_size"), _layers, _layers_out),
    Group(_FACTORS, _residuals, _residuals_out),
)
_LIGHTNING: tuple[Parameter, ...] = (
    *MIXTRAL_ROWS,
    layer("self_attention.in_proj.weight", "self_attn.qkv_proj.weight", "self_attn.output_gate.weight", rule=LIGHTNING),
    layer("self_attention.norm.weight", "self_attn.norm.weight"),
    layer("self_attention.out_proj.weight", "self_attn.out_proj.weight"),
)
_OF_LIGHTNING: dict[str, Any] = {
    **OF_LLAMA,
    **NO_BIAS,
    **NO_SHARED,
    "model_config.apply_residual_connection_post_norm": True,
    "model_config.sparse_attention.variant": "lightning_attention",
}

FAMILIES = (
    Family("minimax_m2", "MiniMaxM2ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),
    Family("minimax", "MiniMaxForCausalLM", LIGHTNING_FIELDS, _LIGHTNING, _OF_LIGHTNING, "model."),
)
