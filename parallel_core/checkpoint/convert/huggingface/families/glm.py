"""GLM-4.5 and 4.6 (Z.ai, 2025): experts behind attention of which half of each head turns."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import (
    EXPERTS,
    HEAD_NORMS,
    LLAMA,
    NO_OTHER_BIAS,
    OF_LLAMA,
    SIGMOID,
    Family,
    Parameter,
    further,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field
from parallel_core.checkpoint.convert.huggingface.rope import rope

_LAYERS: tuple[Parameter, ...] = (
    *LLAMA,
    *EXPERTS,
    *gated("mlp.shared_experts", "mlp.shared_experts"),
    layer("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
)
_OF_MOE: Mapping[str, Any] = {
    **{path: value for path, value in OF_LLAMA.items() if path not in HEAD_NORMS},
    **NO_OTHER_BIAS,
    **SIGMOID,
}

MOE: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    rope(partial=True, default_share=0.5),
    Field("model_config.qkv_has_bias", "attention_bias", False),
    Field("model_config.qk_layernorm", "use_qk_norm", False),
    *experts.DEEPSEEK_V3,
)

FAMILIES = (Family("glm4_moe", "Glm4MoeForCausalLM", MOE, (*_LAYERS, *further(_LAYERS)), _OF_MOE, "model."),)
