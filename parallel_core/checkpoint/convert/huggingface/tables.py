"""The model families of HuggingFace's that are known here, as a table: for each the keys of config.json by setting, and
the names of parameters in the files."""

from parallel_core.checkpoint.convert.huggingface import fields as f
from parallel_core.checkpoint.convert.huggingface.families import (
    deepseek_v4,
    ernie,
    falcon_h1,
    gemma,
    glm,
    gpt_oss,
    hunyuan,
    longcat,
    mamba,
    minimax,
    olmo,
    phi,
    qwen_next,
)
from parallel_core.checkpoint.convert.huggingface.family import (
    DEEPSEEK,
    DENSE,
    EXPERTS,
    HEAD_NORMS,
    INDEXER_ROWS,
    LLAMA,
    MIXTRAL,
    NO_BIAS,
    NO_OTHER_BIAS,
    NO_SHARED,
    OF_DEEPSEEK,
    OF_LLAMA,
    OURS,
    QKV_BIAS,
    SIGMOID,
    SOFTMAX,
    SPARSE,
    WITH_ANY_BIAS,
    Family,
    Parameter,
    further,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.rules import (
    FUSED_QKV,
    FUSED_QKV_TRANSPOSED,
    SAME,
    TRANSPOSED,
    Rule,
)

_QWEN_MOE = (
    *LLAMA,
    *EXPERTS,
    *gated("mlp.shared_experts", "mlp.shared_expert"),
    layer("mlp.shared_experts.gate_weight", "mlp.shared_expert_gate.weight"),
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

_OF_GPT2 = {
    "model_config.normalization": "LayerNorm",
    "model_config.hidden_act": "gelu",
    "model_config.add_bias_linear": True,
    "model_config.position_embedding_type": "learned_absolute",
    "model_config.apply_layernorm_1p": False,
    "model_config.group_query_attention": False,
    "model_config.qk_layernorm": False,
    **DENSE,
}
_SHARED_GATE = {"moe_config.moe_shared_expert_gate": True}
_V3 = (*DEEPSEEK, *further((*DEEPSEEK, *INDEXER_ROWS)))
_OF_V3 = {**OF_DEEPSEEK, **SIGMOID}

FAMILIES = (
    Family("gpt2", "GPT2LMHeadModel", f.GPT2, _GPT2, _OF_GPT2, "transformer."),
    Family("llama", "LlamaForCausalLM", f.LLAMA, LLAMA, {**WITH_ANY_BIAS, **DENSE}, "model."),
    Family("mistral", "MistralForCausalLM", f.MISTRAL, LLAMA, {**OF_LLAMA, **DENSE, **NO_BIAS}, "model."),
    Family("qwen2", "Qwen2ForCausalLM", f.QWEN2, LLAMA, {**OF_LLAMA, **DENSE, **QKV_BIAS}, "model."),
    Family("qwen3", "Qwen3ForCausalLM", f.QWEN3, LLAMA, {**OF_LLAMA, **DENSE, **HEAD_NORMS}, "model."),
    Family("mixtral", "MixtralForCausalLM", f.MIXTRAL, MIXTRAL, {**OF_LLAMA, **NO_BIAS, **NO_SHARED}, "model."),
    Family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        f.QWEN2_MOE,
        _QWEN_MOE,
        {**OF_LLAMA, **NO_OTHER_BIAS, **_SHARED_GATE},
        "model.",
    ),
    Family(
        "qwen3_moe", "Qwen3MoeForCausalLM", f.QWEN3_MOE, _QWEN_MOE, {**OF_LLAMA, **HEAD_NORMS, **NO_SHARED}, "model."
    ),
    Family("deepseek_v3", "DeepseekV3ForCausalLM", f.DEEPSEEK_V3, _V3, _OF_V3, "model."),
    Family(
        "deepseek_v32", "DeepseekV32ForCausalLM", f.DEEPSEEK_V32, (*_V3, *INDEXER_ROWS), {**_OF_V3, **SPARSE}, "model."
    ),
    Family("deepseek_v2", "DeepseekV2ForCausalLM", f.DEEPSEEK_V2, DEEPSEEK, {**OF_DEEPSEEK, **SOFTMAX}, "model."),
    *deepseek_v4.FAMILIES,
    *mamba.FAMILIES,
    *falcon_h1.FAMILIES,
    *qwen_next.FAMILIES,
    *gemma.FAMILIES,
    *glm.FAMILIES,
    *ernie.FAMILIES,
    *gpt_oss.FAMILIES,
    *hunyuan.FAMILIES,
    *longcat.FAMILIES,
    *minimax.FAMILIES,
    *olmo.FAMILIES,
    *phi.FAMILIES,
)
"""All known families; a model that is written is compared with them in this order."""

OTHER_NAMES = {
    "llama2": "llama",
    "qwen25": "qwen2",
    "qwen2-moe": "qwen2_moe",
    "qwen3-moe": "qwen3_moe",
    "deepseek2": "deepseek_v2",
    "deepseek2-lite": "deepseek_v2",
    "deepseek3": "deepseek_v3",
    "deepseek32": "deepseek_v32",
    "deepseek4": "deepseek_v4",
    "falcon-h1": "falcon_h1",
    "gemma": "gemma2",
    "glm45": "glm4_moe",
    "glm45-air": "glm4_moe",
    "longcat": "longcat_flash",
    "phi3.5": "phi3",
    "qwen3-next": "qwen3_next",
}
"""MindSpeed-LLM's name of a family (--model-type-hf) -> `model_type`."""

IGNORED = r"(.*\.)?(attn\.(bias|masked_bias)|rotary_emb\.inv_freq|self_attn\.(slope_rate|(query|key|diagonal)_decay))"
"""Pattern of the names of constants that files hold among the weights. GPT-2's attention has biases as well, those of
c_attn and c_proj."""
