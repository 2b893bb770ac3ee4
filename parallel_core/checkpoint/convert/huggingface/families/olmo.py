"""OLMo 2 (Ai2, 2025): norms behind attention and feed-forward block alone, and over all heads together."""

from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields
from parallel_core.checkpoint.convert.huggingface.family import (
    ATTENTION,
    DENSE,
    EMBEDDINGS,
    HEAD_NORMS,
    MLP,
    NO_BIAS,
    OF_ALL_HEADS,
    OF_LLAMA,
    Family,
    Parameter,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Must

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
    **NO_BIAS,
    **HEAD_NORMS,
    **OF_ALL_HEADS,
    "model_config.use_pre_norm": False,
    "model_config.use_sandwich_norm": True,
}

FIELDS: tuple[AnyField, ...] = (*fields.BASE, fields.HEADS, Must("attention_bias", (False, None)))

FAMILIES = (Family("olmo2", "Olmo2ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),)
