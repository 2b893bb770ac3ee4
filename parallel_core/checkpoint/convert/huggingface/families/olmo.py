"""OLMo 2 and 3 (Ai2, 2025): norms behind attention and feed-forward block, none before them; norms of queries and of
keys over all heads together; in OLMo 3 windows in three of four layers."""

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
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField
from parallel_core.checkpoint.convert.huggingface.rope import ROPE, of_windows

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


OLMO3: tuple[AnyField, ...] = (
    *(field for field in FIELDS if field is not ROPE),
    of_windows(),
    windows.by_layer_types(windows.but_every_fourth),
)

FAMILIES = (
    Family("olmo2", "Olmo2ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),
    Family("olmo3", "Olmo3ForCausalLM", OLMO3, _PARAMETERS, _FIXED, "model."),
)
