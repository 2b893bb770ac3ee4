"""The families: what a setting is called in config.json, and a parameter in the files. Data only.

{layer} and {expert} stand for numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields as f
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField
from parallel_core.checkpoint.convert.huggingface.rules import (
    FUSED_QKV,
    FUSED_QKV_TRANSPOSED,
    GATED,
    INDEXER,
    QKV,
    SAME,
    TRANSPOSED,
    Rule,
)

OURS, THEIRS = "decoder.layers.{layer}.", "model.layers.{layer}."

FURTHER_LAYERS = "mtp.layers.", "model.mtp."
"""How names of layers that predict further tokens begin: ours, and theirs with the layers before not counted."""

Parameter = tuple[str, tuple[str, ...], Rule]
"""Our name, theirs, and how one is made of the other."""


@dataclass(frozen=True)
class Family:
    """Models that share one class of transformers."""

    model_type: str
    architecture: str
    fields: tuple[AnyField, ...]
    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Any]
    """Settings that all of its models have."""
    optional_prefix: str
    """What names lack in files that hold the model without its head."""

    @property
    def predicts_further(self) -> bool:
        """Whether its models may have layers that predict further tokens."""
        return any(ours.startswith(FURTHER_LAYERS[0]) for ours, _, _ in self.parameters)


def _layer(ours: str, *theirs: str, rule: Rule = SAME) -> Parameter:
    return OURS + ours, tuple(THEIRS + name for name in theirs), rule


_EMBEDDINGS: tuple[Parameter, ...] = (
    ("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), SAME),
    ("decoder.final_layernorm.weight", ("model.norm.weight",), SAME),
    ("output_layer.weight", ("lm_head.weight",), SAME),
)
_NORMS = (
    _layer("input_layernorm.weight", "input_layernorm.weight"),
    _layer("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
)
_QKV = tuple(
    _layer(f"self_attention.linear_qkv.{kind}", *(f"self_attn.{part}_proj.{kind}" for part in "qkv"), rule=QKV)
    for kind in ("weight", "bias")
)
_ATTENTION = (
    *_QKV,
    _layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    _layer("self_attention.linear_proj.bias", "self_attn.o_proj.bias"),
    _layer("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    _layer("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
)
_LATENT_ATTENTION = (
    _layer("self_attention.linear_q_proj.weight", "self_attn.q_proj.weight"),
    _layer("self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight"),
    _layer("self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight"),
    _layer("self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight"),
    _layer("self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    _layer("self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight"),
    _layer("self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight"),
    _layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
)


def _gated(
    ours: str, theirs: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> tuple[Parameter, ...]:
    return tuple(
        row
        for kind in ("weight", "bias")
        for row in (
            _layer(f"{ours}.linear_fc1.{kind}", f"{theirs}.{gate}.{kind}", f"{theirs}.{up}.{kind}", rule=GATED),
            _layer(f"{ours}.linear_fc2.{kind}", f"{theirs}.{down}.{kind}"),
        )
    )


_MLP = _gated("mlp", "mlp")
_EXPERTS = (
    _layer("mlp.router.weight", "mlp.gate.weight"),
    *_gated("mlp.experts.local_experts.{expert}", "mlp.experts.{expert}"),
)
_LLAMA = (*_EMBEDDINGS, *_NORMS, *_ATTENTION, *_MLP)
_MIXTRAL = (
    *_EMBEDDINGS,
    *_NORMS,
    *_ATTENTION,
    _layer("mlp.router.weight", "block_sparse_moe.gate.weight"),
    *_gated("mlp.experts.local_experts.{expert}", "block_sparse_moe.experts.{expert}", "w1", "w3", "w2"),
)
_QWEN_MOE = (
    *_LLAMA,
    *_EXPERTS,
    *_gated("mlp.shared_experts", "mlp.shared_expert"),
    _layer("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
)
_INDEXER = (
    *(
        _layer(f"self_attention.core_attention.indexer.{ours}", f"self_attn.indexer.{theirs}", rule=INDEXER)
        for ours, theirs in (
            ("linear_wq_b.weight", "wq_b.weight"),
            ("linear_wk.weight", "wk.weight"),
            ("k_norm.weight", "k_norm.weight"),
            ("k_norm.bias", "k_norm.bias"),
        )
    ),
    _layer("self_attention.core_attention.indexer.linear_weights_proj.weight", "self_attn.indexer.weights_proj.weight"),
)
_DEEPSEEK = (
    *_EMBEDDINGS,
    *_NORMS,
    *_LATENT_ATTENTION,
    *_MLP,
    *_EXPERTS,
    *_gated("mlp.shared_experts", "mlp.shared_experts"),
    _layer("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
)


COPIES = r"model\.mtp\.\d+\.(embed_tokens|shared_head\.head)\.weight"
"""Tensors of such a layer that are mostly copies of the model's."""


def _further(row: Parameter) -> Parameter:
    ours, theirs, rule = row
    start = f"{FURTHER_LAYERS[0]}{{layer}}.transformer_layer."
    return ours.replace(OURS, start), tuple(n.replace(THEIRS, f"{FURTHER_LAYERS[1]}{{layer}}.") for n in theirs), rule


_MULTI_TOKEN = (
    *(_further(row) for row in (*_DEEPSEEK, *_INDEXER) if row[0].startswith(OURS)),
    *(
        (f"{FURTHER_LAYERS[0]}{{layer}}.{ours}.weight", (f"{FURTHER_LAYERS[1]}{{layer}}.{theirs}.weight",), SAME)
        for ours, theirs in (
            ("enorm", "enorm"),
            ("hnorm", "hnorm"),
            ("eh_proj", "eh_proj"),
            ("final_layernorm", "shared_head.norm"),
            ("embedding.word_embeddings", "embed_tokens"),
            ("output_layer", "shared_head.head"),
        )
    ),
)


def _gpt2_layer(ours: str, theirs: str, weight: Rule = SAME, bias: Rule = SAME) -> tuple[Parameter, ...]:
    rules = {"weight": weight, "bias": bias}
    return tuple((f"{OURS}{ours}.{kind}", (f"transformer.h.{{layer}}.{theirs}.{kind}",), rules[kind]) for kind in rules)


_GPT2: tuple[Parameter, ...] = (
    ("embedding.word_embeddings.weight", ("transformer.wte.weight",), SAME),
    ("embedding.position_embeddings.weight", ("transformer.wpe.weight",), SAME),
    ("decoder.final_layernorm.weight", ("transformer.ln_f.weight",), SAME),
    ("decoder.final_layernorm.bias", ("transformer.ln_f.bias",), SAME),
    ("output_layer.weight", ("lm_head.weight",), SAME),
    *_gpt2_layer("input_layernorm", "ln_1"),
    *_gpt2_layer("pre_mlp_layernorm", "ln_2"),
    *_gpt2_layer("self_attention.linear_qkv", "attn.c_attn", FUSED_QKV_TRANSPOSED, FUSED_QKV),
    *_gpt2_layer("self_attention.linear_proj", "attn.c_proj", TRANSPOSED),
    *_gpt2_layer("mlp.linear_fc1", "mlp.c_fc", TRANSPOSED),
    *_gpt2_layer("mlp.linear_fc2", "mlp.c_proj", TRANSPOSED),
)

_DENSE = {"moe_config.num_experts": None, "model_config.multi_latent_attention.enabled": False}
_OF_GPT2 = {
    "model_config.normalization": "LayerNorm",
    "model_config.hidden_act": "gelu",
    "model_config.add_bias_linear": True,
    "model_config.position_embedding_type": "learned_absolute",
    "model_config.apply_layernorm_1p": False,
    "model_config.group_query_attention": False,
    "model_config.qk_layernorm": False,
    **_DENSE,
}
_WITH_ANY_BIAS: dict[str, Any] = {
    "model_config.normalization": "RMSNorm",
    "model_config.hidden_act": "swiglu",
    "model_config.position_embedding_type": "rope",
    "model_config.rotary_interleaved": False,
    "model_config.apply_layernorm_1p": False,
    "model_config.multi_latent_attention.enabled": False,
    "model_config.qk_layernorm": False,
}
_OF_LLAMA = {**_WITH_ANY_BIAS, "model_config.add_bias_linear": False}
_HEAD_NORMS = {"model_config.qk_layernorm": True}
_NO_OTHER_BIAS = {"model_config.out_proj_has_bias": False, "model_config.mlp_has_bias": False}
_NO_BIAS = {"model_config.qkv_has_bias": False, **_NO_OTHER_BIAS}
_QKV_BIAS = {"model_config.qkv_has_bias": True, **_NO_OTHER_BIAS}
_SHARED_GATE = {"moe_config.moe_shared_expert_gate": True}
_NO_SHARED = {"moe_config.moe_shared_expert_intermediate_size": None}
_OF_DEEPSEEK = {**_OF_LLAMA, **_HEAD_NORMS, "model_config.multi_latent_attention.enabled": True}
_SIGMOID = {"moe_config.moe_router_score_function": "sigmoid", "moe_config.moe_router_enable_expert_bias": True}
_SOFTMAX = {"moe_config.moe_router_score_function": "softmax"}
_V3 = (*_DEEPSEEK, *_MULTI_TOKEN)
_OF_V3 = {**_OF_DEEPSEEK, **_SIGMOID}
_SPARSE = {"model_config.sparse_attention.variant": "dsa"}

FAMILIES = (
    Family("gpt2", "GPT2LMHeadModel", f.GPT2, _GPT2, _OF_GPT2, "transformer."),
    Family("llama", "LlamaForCausalLM", f.LLAMA, _LLAMA, {**_WITH_ANY_BIAS, **_DENSE}, "model."),
    Family("mistral", "MistralForCausalLM", f.MISTRAL, _LLAMA, {**_OF_LLAMA, **_DENSE, **_NO_BIAS}, "model."),
    Family("qwen2", "Qwen2ForCausalLM", f.QWEN2, _LLAMA, {**_OF_LLAMA, **_DENSE, **_QKV_BIAS}, "model."),
    Family("qwen3", "Qwen3ForCausalLM", f.QWEN3, _LLAMA, {**_OF_LLAMA, **_DENSE, **_HEAD_NORMS}, "model."),
    Family("mixtral", "MixtralForCausalLM", f.MIXTRAL, _MIXTRAL, {**_OF_LLAMA, **_NO_BIAS, **_NO_SHARED}, "model."),
    Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        f.QWEN2_MOE,
        _QWEN_MOE,
        {**_OF_LLAMA, **_NO_OTHER_BIAS, **_SHARED_GATE},
        "model.",
    ),
    Family(
        "qwen3_moe", "Qwen3MoeForCausalLM", f.QWEN3_MOE, _QWEN_MOE, {**_OF_LLAMA, **_HEAD_NORMS, **_NO_SHARED}, "model."
    ),
    Family("deepseek_v3", "DeepseekV3ForCausalLM", f.DEEPSEEK_V3, _V3, _OF_V3, "model."),
    Family(
        "deepseek_v32", "DeepseekV32ForCausalLM", f.DEEPSEEK_V32, (*_V3, *_INDEXER), {**_OF_V3, **_SPARSE}, "model."
    ),
    Family("deepseek_v2", "DeepseekV2ForCausalLM", f.DEEPSEEK_V2, _DEEPSEEK, {**_OF_DEEPSEEK, **_SOFTMAX}, "model."),
)
"""In the order in which a model is compared with them."""

OTHER_NAMES = {
    "llama2": "llama",
    "qwen25": "qwen2",
    "qwen2-moe": "qwen2_moe",
    "qwen3-moe": "qwen3_moe",
    "deepseek2": "deepseek_v2",
    "deepseek2-lite": "deepseek_v2",
    "deepseek3": "deepseek_v3",
}
"""MindSpeed-LLM's names of families (--model-type-hf)."""

IGNORED = r"(.*\.)?(attn\.(bias|masked_bias)|rotary_emb\.inv_freq)"
"""Constants that older files hold among the weights. GPT-2's attention has a bias too, but of c_attn and c_proj."""
