"""LongCat-Flash (Meituan, 2025): layers of two halves, each with attention and a dense block; experts that read the
input of the first half's dense block, and whose result is added behind the second half; experts that return their
input."""

from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import (
    EMBEDDINGS,
    LATENT_ATTENTION,
    MLP,
    NO_SHARED,
    NORMS,
    OF_DEEPSEEK,
    OURS,
    SOFTMAX,
    THEIRS,
    Family,
    Parameter,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, always
from parallel_core.checkpoint.convert.huggingface.rope import ROPE

_MODULES = "input_layernorm", "post_attention_layernorm", "self_attn"


def _half(ours: str, number: int, row: Parameter) -> Parameter:
    """The row of a parameter in one half of a layer, made of that in a plain layer; ours: our half's name, number:
    theirs."""
    name, theirs, rule = row
    starts = {f"{module}.": f"{module}.{number}." for module in _MODULES} | {"mlp.": f"mlps.{number}."}

    def renamed(their: str) -> str:
        within = their.removeprefix(THEIRS)
        start = next(start for start in starts if within.startswith(start))
        return f"{THEIRS}{starts[start]}{within.removeprefix(start)}"

    return name.replace(OURS, f"{OURS}{ours}."), tuple(map(renamed, theirs)), rule


_PARAMETERS: tuple[Parameter, ...] = (
    *EMBEDDINGS,
    *(
        _half(ours, number, row)
        for number, ours in enumerate(("first", "second"))
        for row in (*NORMS, *LATENT_ATTENTION, *MLP)
    ),
    layer("shortcut.router.weight", "mlp.router.classifier.weight"),
    layer("shortcut.router.expert_bias", "mlp.router.e_score_correction_bias"),
    *gated("shortcut.experts.local_experts.{expert}", "mlp.experts.{expert}"),
)
_FIXED: dict[str, Any] = {
    **OF_DEEPSEEK,
    **SOFTMAX,
    **NO_SHARED,
    "model_config.multi_latent_attention.scale_q_lora": True,
    "model_config.multi_latent_attention.scale_kv_lora": True,
    "moe_config.moe_shortcut_connected": True,
    "moe_config.moe_router_enable_expert_bias": True,
}
_ROTARY = "model_config.multi_latent_attention.qk_pos_emb_head_dim"
"""The option from which config.json's head_dim, transformers' size of the rotary angles, is written."""
_RENAMED = {"num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size"}

FIELDS: tuple[AnyField, ...] = (
    *(
        field._replace(key=_RENAMED.get(field.key, field.key)) if isinstance(field, Field) else field
        for field in fields.SIZES
    ),
    fields.tied(False),
    fields.SILU,
    ROPE,
    *fields.LATENT_HEADS,
    Group((), lambda _: {}, lambda ours: {"head_dim": ours[_ROTARY]}),
    Field("moe_config.moe_router_topk", "moe_topk"),
    Field("moe_config.moe_ffn_hidden_size", "expert_ffn_hidden_size"),
    Field("moe_config.num_experts", "n_routed_experts"),
    Field("moe_config.num_zero_experts", "zero_expert_num", 0),
    experts.SCALE,
    Must("zero_expert_type", ("identity", None)),
    Must("mla_scale_q_lora", (True, None)),
    Must("mla_scale_kv_lora", (True, None)),
    always("moe_config.moe_layer_freq", 1),
    always("moe_config.moe_router_pre_softmax", True),
)

FAMILIES = (Family("longcat_flash", "LongcatFlashForCausalLM", FIELDS, _PARAMETERS, _FIXED, "model."),)
