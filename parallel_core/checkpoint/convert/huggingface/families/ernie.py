"""ERNIE 4.5 with experts (Baidu, 2025)."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import (
    EXPERTS,
    LLAMA,
    NO_BIAS,
    OF_LLAMA,
    SOFTMAX,
    Family,
    Parameter,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rope import ROPE
from parallel_core.checkpoint.convert.huggingface.rules import IN_A_ROW

_PARAMETERS: tuple[Parameter, ...] = (
    *LLAMA,
    *EXPERTS,
    *gated("mlp.shared_experts", "mlp.shared_experts"),
    layer("mlp.router.expert_bias", "mlp.moe_statics.e_score_correction_bias", rule=IN_A_ROW),
)
_FIXED: dict[str, Any] = {
    **OF_LLAMA,
    **NO_BIAS,
    **SOFTMAX,
    "model_config.rotary_interleaved": True,
    "moe_config.moe_router_enable_expert_bias": True,
}


def _is_dense(config: Mapping[str, Any], number: int) -> bool:
    first, last = config.get("moe_layer_start_index") or 0, config.get("moe_layer_end_index", -1)
    last = last if last is not None and last >= 0 else config["num_hidden_layers"] - 1
    return not (first <= number <= last and (number + 1) % (config.get("moe_layer_interval") or 1) == 0)


def _layers_out(ours: Settings) -> Mapping[str, Any]:
    """The keys of layers with experts: first, last and the smallest interval that gives them. Raises ValueError for
    layers that lie otherwise."""
    layers = experts.layers_out(ours)
    first, last = layers.index(1), len(layers) - 1 - layers[::-1].index(1)
    for interval in range(1, len(layers) + 1):
        keys = ("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval", "num_hidden_layers")
        said = dict(zip(keys, (first, last, interval, len(layers)), strict=True))
        if [not _is_dense(said, layer) for layer in range(len(layers))] == [*map(bool, layers)]:
            return said
    raise ValueError(f"layers with experts {layers}: written are those between two layers, every so many-th")


FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(True),
    fields.SILU,
    ROPE,
    fields.HEADS,
    Must("use_bias", (False, None)),
    Field("moe_config.moe_router_topk", "moe_k"),
    Field("moe_config.num_experts", "moe_num_experts"),
    experts.WIDTH,
    Group(
        ("num_hidden_layers", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
        experts.experts_in(_is_dense),
        _layers_out,
    ),
    experts.shared("moe_num_shared_experts", none=0),
    always("moe_config.moe_router_pre_softmax", True),
    always("moe_config.moe_router_norm_topk_prob", True),
)

FAMILIES = (Family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),)
