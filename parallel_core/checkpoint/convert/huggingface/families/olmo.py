"""OLMo 2 and 3 (Ai2, 2025): norms behind attention and feed-forward block alone, and over all heads together; windows
in three of four layers."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields, windows
from parallel_core.checkpoint.convert.huggingface.family import (
    ATTENTION,
    DENSE,
    EMBEDDINGS,
    HEAD_NORMS,
    MLP,
    OF_ALL_HEADS,
    OF_LLAMA,
    Family,
    Parameter,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Group, Settings
from parallel_core.checkpoint.convert.huggingface.rope import ROPE

_PARAMETERS: tuple[Parameter, ...] = (
    *EMBEDDINGS,
    layer("post_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer("post_mlp_layernorm.weight", "post_feedforward_layernorm.weight"),
    *ATTENTION,
    *MLP,
)
_FIXED: dict[str, Any] = {
    **OF_LLAMA,
    **DENSE,
    "model_config.mlp_has_bias": False,
    **HEAD_NORMS,
    **OF_ALL_HEADS,
    "model_config.use_pre_norm": False,
    "model_config.use_sandwich_norm": True,
}

FIELDS: tuple[AnyField, ...] = (*fields.BASE, fields.HEADS, fields.ATTENTION_BIAS)


def _rotary(config: Mapping[str, Any]) -> Settings:
    """Positions of layers with the window are not stretched."""
    found = ROPE.to_ours(config)
    return found | ({_LOCAL: found["model_config.rotary_base"]} if found.get("model_config.rope_scaling.type") else {})


def _rotary_out(ours: Settings) -> Mapping[str, Any]:
    if ours[_LOCAL] not in (None, ours["model_config.rotary_base"]):
        raise ValueError(f"--rope-local-base-freq {ours[_LOCAL]}: layers of its models have one rotary base")
    return ROPE.to_theirs(ours)


_LOCAL = "model_config.sliding_window.local_rotary_base"
OLMO3: tuple[AnyField, ...] = (
    *(field for field in FIELDS if field is not ROPE),
    Group(ROPE.keys, _rotary, _rotary_out),
    windows.by_layer_types(windows.but_every_fourth),
)

FAMILIES = (
    Family("olmo2", "Olmo2ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),
    Family("olmo3", "Olmo3ForCausalLM", OLMO3, _PARAMETERS, _FIXED, "model."),
)
