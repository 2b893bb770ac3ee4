"""Phi-3 (Microsoft, 2024): fused projections, and rotary positions that LongRoPE stretches."""

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
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField
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

FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    rope(partial=True, kinds=("longrope",)),
    windows.everywhere(),
)

FAMILIES = (Family("phi3", "Phi3ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),)
