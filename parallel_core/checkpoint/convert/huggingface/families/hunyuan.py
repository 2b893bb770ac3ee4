"""Hunyuan (Tencent, 2025): heads of queries and keys are normed after they are rotated; rotary positions can be
stretched by one number, alpha."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields
from parallel_core.checkpoint.convert.huggingface.family import (
    DENSE,
    EMBEDDINGS,
    HEAD_NORMS,
    MLP,
    NO_BIAS,
    NORMS,
    OF_LLAMA,
    QKV_ROWS,
    SOFTMAX,
    Family,
    Parameter,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rope import ROPE

_WITHOUT_MLP: tuple[Parameter, ...] = (
    *EMBEDDINGS,
    *NORMS,
    *QKV_ROWS,
    layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    layer("self_attention.q_layernorm.weight", "self_attn.query_layernorm.weight"),
    layer("self_attention.k_layernorm.weight", "self_attn.key_layernorm.weight"),
)
_FIXED: dict[str, Any] = {**OF_LLAMA, **NO_BIAS, **HEAD_NORMS, "model_config.qk_norm_after_rotary": True}


def _positions(config: Mapping[str, Any]) -> Settings:
    """The settings of rotary positions. alpha stretches the base alone, to base x alpha^(d / (d - 2)) with heads of d
    channels, whatever the length."""
    scaling = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    alpha, theta = scaling.get("alpha"), scaling.get("rope_theta", config.get("rope_theta"))
    if not alpha or theta is None:
        return ROPE.to_ours(config)
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return ROPE.to_ours({"rope_theta": theta * alpha ** (size / (size - 2))})


_COMMON: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    Must("attention_bias", (False, None)),
    Group((*ROPE.keys, "head_dim", "hidden_size", "num_attention_heads"), _positions, ROPE.to_theirs),
)


def _alike(value: Any) -> Any:
    """The number that all layers have, from one number or a list of each layer's. Raises ValueError if these differ."""
    if isinstance(value, list) and len({*value}) != 1:
        raise ValueError(f"config.json: {value}: layers with other numbers of experts than others are not known here")
    return value[0] if isinstance(value, list) else value


def _chosen(value: Any) -> Any:
    """The number of experts of a token. Raises ValueError for 1: scores are divided by their sum, so that the router of
    a single one learns nothing."""
    if _alike(value) == 1:
        raise ValueError("config.json: moe_topk 1: each token's expert weighs 1, whatever its router says")
    return _alike(value)


def _widths(config: Mapping[str, Any]) -> Settings:
    """The settings of the widths of a layer's routed experts and of its shared one, which are one key."""
    size = config["intermediate_size"]
    return {"moe_config.moe_ffn_hidden_size": size, "moe_config.moe_shared_expert_intermediate_size": size}


def _widths_out(ours: Settings) -> Mapping[str, Any]:
    sizes = {ours[path] for path in _widths({"intermediate_size": 0})}
    if len(sizes) != 1:
        raise ValueError(f"experts of widths {sorted(map(str, sizes))}: Hunyuan's and its shared one have the same")
    return {"intermediate_size": sizes.pop()}


_EXPERTS: tuple[AnyField, ...] = (
    *(field for field in _COMMON if getattr(field, "key", "") != "intermediate_size"),
    Field("moe_config.moe_router_topk", "moe_topk", to_ours=_chosen),
    Field("moe_config.num_experts", "num_experts", to_ours=_alike),
    Group(("intermediate_size",), _widths, _widths_out),
    always("moe_config.moe_layer_freq", 1),
    always("moe_config.moe_router_pre_softmax", True),
    always("moe_config.moe_router_norm_topk_prob", True),
)
_OF_EXPERTS: tuple[Parameter, ...] = (
    *_WITHOUT_MLP,
    layer("mlp.router.weight", "mlp.gate.wg.weight"),
    *gated("mlp.experts.local_experts.{expert}", "mlp.experts.{expert}"),
    *gated("mlp.shared_experts", "mlp.shared_mlp"),
)

_OF_DENSE: tuple[Parameter, ...] = (*_WITHOUT_MLP, *MLP)

FAMILIES = (
    Family("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", _COMMON, _OF_DENSE, {**_FIXED, **DENSE}, "model."),
    Family("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", _EXPERTS, _OF_EXPERTS, {**_FIXED, **SOFTMAX}, "model."),
)
