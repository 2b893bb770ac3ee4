"""Gemma 2 and 3 (Gemma Team, 2024 and 2025): norms before and after each half of a layer, and windows; in Gemma 2
capped logits and scores, in Gemma 3 norms of queries' and keys' heads."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields, windows
from parallel_core.checkpoint.convert.huggingface.family import (
    ATTENTION,
    DENSE,
    EMBEDDINGS,
    HEAD_NORMS,
    MLP,
    OF_LLAMA,
    Family,
    Parameter,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings
from parallel_core.checkpoint.convert.huggingface.rope import ROPE, of_windows

_PARAMETERS: tuple[Parameter, ...] = (
    *EMBEDDINGS,
    layer("input_layernorm.weight", "input_layernorm.weight"),
    layer("post_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer("pre_mlp_layernorm.weight", "pre_feedforward_layernorm.weight"),
    layer("post_mlp_layernorm.weight", "post_feedforward_layernorm.weight"),
    *ATTENTION,
    *MLP,
)
_FIXED: dict[str, Any] = {
    **OF_LLAMA,
    **DENSE,
    "model_config.hidden_act": "geglu_tanh",
    "model_config.apply_layernorm_1p": True,
    "model_config.use_sandwich_norm": True,
}


def _embedding(config: Mapping[str, Any]) -> Settings:
    return {"model_config.scales.embedding": sqrt(config["hidden_size"])}


def _embedding_out(ours: Settings) -> Mapping[str, Any]:
    """No keys: config.json has none for the embedding's scale, so a model with another scale is found to differ when
    read back."""
    return {}


_FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.HEADS,
    fields.tied(True),
    Field(
        "model_config.scales.attention",
        "query_pre_attn_scalar",
        256,
        lambda scalar: 1 / sqrt(scalar),
        lambda scale: round(1 / scale**2),
    ),
    Group(("hidden_size",), _embedding, _embedding_out),
    fields.ATTENTION_BIAS,
    Must("hidden_activation", ("gelu_pytorch_tanh", None)),
    Must("use_bidirectional_attention", (False, None)),
)
_CAP = Field("model_config.scales.logit_cap", "final_logit_softcapping", None)
GEMMA2: tuple[AnyField, ...] = (
    *_FIELDS,
    ROPE,
    windows.by_layer_types(windows.every_other),
    Field("model_config.scales.attention_cap", "attn_logit_softcapping", None),
    _CAP,
)


GEMMA3: tuple[AnyField, ...] = (
    *_FIELDS,
    of_windows(own_base=10000.0),
    windows.by_layer_types(windows.but_every_sixth, "sliding_window_pattern", "_sliding_window_pattern"),
    Must("attn_logit_softcapping", (None,)),
    _CAP,
)

FAMILIES = (
    Family("gemma2", "Gemma2ForCausalLM", GEMMA2, _PARAMETERS, _FIXED, "model."),
    Family("gemma3_text", "Gemma3ForCausalLM", GEMMA3, _PARAMETERS, {**_FIXED, **HEAD_NORMS}, "model."),
)
