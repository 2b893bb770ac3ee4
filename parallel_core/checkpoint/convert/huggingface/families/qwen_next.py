"""Qwen3-Next and Qwen3.5 (2025, 2026): gated delta nets in most layers, attention with gates in the others."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import (
    EXPERTS,
    HEAD_NORMS,
    LLAMA,
    OF_LLAMA,
    Family,
    Parameter,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rope import rope
from parallel_core.checkpoint.convert.huggingface.rules import DELTA_BY_HEAD, DELTA_BY_PART
from parallel_core.checkpoint.networks import layers_with_states

_FREQUENCY = "model_config.linear_attention.linear_attention_freq"
_KINDS = "full_attention", "linear_attention"


def _layers(config: Mapping[str, Any]) -> Settings:
    """The setting of the kinds of layers: `layer_types` or, without it, attention in every `full_attention_interval`-th
    layer."""
    kinds, layers = config.get("layer_types"), range(config["num_hidden_layers"])
    if kinds is None:
        interval = config.get("full_attention_interval") or 4
        kinds = [_KINDS[(number + 1) % interval != 0] for number in layers]
    unknown = sorted({*kinds} - {*_KINDS})
    if unknown or len(kinds) != len(layers):
        raise ValueError(f"config.json: layer_types {kinds}: {_KINDS[0]} or {_KINDS[1]} of each of the layers")
    return {_FREQUENCY: [_KINDS.index(kind) for kind in kinds]}


def _layers_out(ours: Settings) -> Mapping[str, Any]:
    found = layers_with_states(ours[_FREQUENCY], ours["model_config.num_layers"])
    return {"layer_types": [_KINDS[is_linear] for is_linear in found]}


_DELTA = tuple(
    Field(f"model_config.linear_attention.{ours}", theirs)
    for ours, theirs in (
        ("linear_conv_kernel_dim", "linear_conv_kernel_dim"),
        ("linear_key_head_dim", "linear_key_head_dim"),
        ("linear_value_head_dim", "linear_value_head_dim"),
        ("linear_num_key_heads", "linear_num_key_heads"),
        ("linear_num_value_heads", "linear_num_value_heads"),
    )
)
_NO_WIDTH = tuple(field for field in fields.SIZES if getattr(field, "key", "") != "intermediate_size")
_HYBRID: tuple[AnyField, ...] = (
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    rope(partial=True, default_share=0.25),
    fields.ATTENTION_BIAS,
    Group(("layer_types", "full_attention_interval", "num_hidden_layers"), _layers, _layers_out),
    *_DELTA,
)
_SHARED: tuple[AnyField, ...] = (
    Field("moe_config.moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
)
_ALL_EXPERTS: tuple[AnyField, ...] = (
    experts.CHOSEN,
    experts.WIDTH,
    Field("moe_config.num_experts", "num_experts"),
    always("moe_config.moe_router_pre_softmax", False),
    always("moe_config.moe_layer_freq", 1),
)

_STATES = tuple(
    layer(f"self_attention.{ours}", f"linear_attn.{theirs}")
    for ours, theirs in (
        ("conv1d.weight", "conv1d.weight"),
        ("A_log", "A_log"),
        ("dt_bias", "dt_bias"),
        ("out_norm.weight", "norm.weight"),
        ("out_proj.weight", "out_proj.weight"),
    )
)
_BY_HEAD = layer(
    "self_attention.in_proj.weight",
    *(f"linear_attn.in_proj_{part}.weight" for part in ("qkvz", "ba")),
    rule=DELTA_BY_HEAD,
)
_BY_PART = layer(
    "self_attention.in_proj.weight",
    *(f"linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")),
    rule=DELTA_BY_PART,
)
_MOE: tuple[Parameter, ...] = (
    *EXPERTS,
    *gated("mlp.shared_experts", "mlp.shared_expert"),
    layer("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
)
_OF_ALL: dict[str, Any] = {
    **OF_LLAMA,
    **HEAD_NORMS,
    "model_config.mlp_has_bias": False,
    "model_config.apply_layernorm_1p": True,
    "model_config.attention_output_gate": True,
    "model_config.sparse_attention.variant": "gated_delta_net",
}
_OF_MOE = {**_OF_ALL, "moe_config.moe_shared_expert_gate": True}
_OF_DENSE = {**_OF_ALL, "moe_config.num_experts": None}

_NO_EXPERTS: tuple[AnyField, ...] = (
    Must("num_experts", (0,)),
    Group(
        (
            *("moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok", "norm_topk_prob"),
            *("router_aux_loss_coef", "output_router_logits", "decoder_sparse_step", "mlp_only_layers"),
        ),
        lambda config: {},
        lambda ours: {},
    ),
)
"""Keys of a Qwen3-Next without experts, among them sizes of experts that it has none of."""

FAMILIES = (
    Family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        (*fields.SIZES, *_HYBRID, *_NO_EXPERTS),
        (*LLAMA, *_STATES, _BY_HEAD),
        _OF_DENSE,
        "model.",
        reads=lambda config: config.get("num_experts") == 0,
    ),
    Family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        (*fields.SIZES, *_HYBRID, *experts.QWEN, *_SHARED),
        (*LLAMA, *_STATES, _BY_HEAD, *_MOE),
        _OF_MOE,
        "model.",
    ),
    Family(
        "qwen3_5_text",
        "Qwen3_5ForCausalLM",
        (*fields.SIZES, *_HYBRID),
        (*LLAMA, *_STATES, _BY_PART),
        _OF_DENSE,
        "model.",
    ),
    Family(
        "qwen3_5_moe_text",
        "Qwen3_5MoeForCausalLM",
        (*_NO_WIDTH, *_HYBRID, *_ALL_EXPERTS, *_SHARED),
        (*LLAMA, *_STATES, _BY_PART, *_MOE),
        _OF_MOE,
        "model.",
    ),
)
