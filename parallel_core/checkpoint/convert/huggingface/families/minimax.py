"""MiniMax-M2 (MiniMax, 2025): experts behind attention whose norms are over all heads, of which a part turns."""

from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
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
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Must, always
from parallel_core.checkpoint.convert.huggingface.rope import rope

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

FAMILIES = (Family("minimax_m2", "MiniMaxM2ForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),)
