"""gpt-oss (OpenAI, 2025): attention sinks, windows in every other layer, clamped experts with biases; in files
a layer has one tensor for the first (second) weights of all its experts, and one for their first (second) biases."""

from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields, windows
from parallel_core.checkpoint.convert.huggingface.family import (
    ATTENTION,
    EMBEDDINGS,
    NO_SHARED,
    NORMS,
    WITH_ANY_BIAS,
    Family,
    Parameter,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Must, always
from parallel_core.checkpoint.convert.huggingface.rope import rope
from parallel_core.checkpoint.convert.huggingface.rules import NEIGHBOURS, NEIGHBOURS_TRANSPOSED, TRANSPOSED

_EXPERT = "mlp.experts.local_experts.{expert}"
_PARAMETERS: tuple[Parameter, ...] = (
    *EMBEDDINGS,
    *NORMS,
    *ATTENTION,
    layer("self_attention.core_attention.softmax_offset", "self_attn.sinks"),
    layer("mlp.router.weight", "mlp.router.weight"),
    layer("mlp.router.bias", "mlp.router.bias"),
    layer(f"{_EXPERT}.linear_fc1.weight", "mlp.experts.{expert}.gate_up_proj", rule=NEIGHBOURS_TRANSPOSED),
    layer(f"{_EXPERT}.linear_fc1.bias", "mlp.experts.{expert}.gate_up_proj_bias", rule=NEIGHBOURS),
    layer(f"{_EXPERT}.linear_fc2.weight", "mlp.experts.{expert}.down_proj", rule=TRANSPOSED),
    layer(f"{_EXPERT}.linear_fc2.bias", "mlp.experts.{expert}.down_proj_bias"),
)
_FIXED: dict[str, Any] = {
    **WITH_ANY_BIAS,
    **NO_SHARED,
    "model_config.hidden_act": "quick_geglu",
    "model_config.glu_linear_offset": 1.0,
    "model_config.softmax_type": "learnable",
    "model_config.mlp_has_bias": True,
    "moe_config.moe_router_score_function": "softmax",
    "moe_config.moe_router_enable_expert_bias": False,
}

FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    fields.HEADS,
    fields.ATTENTION_BIAS,
    rope(kinds=("yarn",)),
    windows.by_layer_types(windows.every_other),
    Must("swiglu_alpha", (1.702, None)),
    Field("model_config.activation_func_clamp_value", "swiglu_limit", 7.0),
    *experts.MIXTRAL,
    Field("moe_config.moe_ffn_hidden_size", "intermediate_size"),
    always("moe_config.moe_layer_freq", 1),
    always("model_config.add_bias_linear", True),
)

FAMILIES = (Family("gpt_oss", "GptOssForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model.", stacks_experts=True),)
