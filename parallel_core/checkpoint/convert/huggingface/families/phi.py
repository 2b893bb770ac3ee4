"""Phi-3 (Microsoft, 2024): fused projections, and rotary positions that LongRoPE can stretch."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields, windows
from parallel_core.checkpoint.convert.huggingface.family import (
    DENSE,
    EMBEDDINGS,
    NO_BIAS,
    NORMS,
    OF_LLAMA,
    Family,
    Parameter,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Group, Settings
from parallel_core.checkpoint.convert.huggingface.rope import rope
from parallel_core.checkpoint.convert.huggingface.rules import FUSED_QKV

_PARAMETERS: tuple[Parameter, ...] = (
    *EMBEDDINGS,
    *NORMS,
    layer("self_attention.linear_qkv.weight", "self_attn.qkv_proj.weight", rule=FUSED_QKV),
    layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    layer("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight"),
    layer("mlp.linear_fc2.weight", "mlp.down_proj.weight"),
)
_FIXED: dict[str, Any] = {**OF_LLAMA, **DENSE, **NO_BIAS}


def _defaults_out(ours: Settings) -> Mapping[str, Any]:
    """`pad_token_id` null, and `original_max_position_embeddings`, the length up to which positions are not stretched:
    written since transformers' defaults are others, an id that small vocabularies lack, and 4096."""
    length = ours.get("model_config.rope_scaling.original_max_position_embeddings")
    longest = ours["model_config.max_position_embeddings"]
    return {"pad_token_id": None, "original_max_position_embeddings": length or longest}


FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    rope(partial=True, kinds=("longrope",)),
    windows.everywhere(),
    Group((), lambda _: {}, _defaults_out),
)

FAMILIES = (Family("phi3", "Phi3ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),)
