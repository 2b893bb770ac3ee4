"""GLM-4.5 and 4.6 (Z.ai, 2025): layers of experts, and attention in which half of each head's channels rotate; GLM-5
(2026): layers of experts, and sparse latent attention, in which layers can share the choice of keys of another layer's
indexer (arXiv 2603.12201)."""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import (
    DEEPSEEK,
    EXPERTS,
    HEAD_NORMS,
    LLAMA,
    NO_OTHER_BIAS,
    OF_DEEPSEEK,
    OF_LLAMA,
    SIGMOID,
    SPARSE,
    Family,
    Parameter,
    further,
    gated,
    indexer_rows,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings
from parallel_core.checkpoint.convert.huggingface.rope import rope
from parallel_core.checkpoint.convert.huggingface.rules import INDEXER_NEIGHBOURS
from parallel_core.config.families import SparseAttentionConfig

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


_PATTERN = "model_config.sparse_attention.index_topk_pattern"
_CHOICES = ("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset", "layer_types")
_KINDS = {"full": "F", "shared": "S"}


def _choices(config: Mapping[str, Any]) -> Settings:
    """The setting of the layers that have an indexer: by a list or, without one, a pattern or a frequency."""
    layers, kinds, pattern = config["num_hidden_layers"], config.get("indexer_types"), config.get("index_topk_pattern")
    if kinds is None and pattern is None:
        frequency, offset = config.get("index_topk_freq") or 1, config.get("index_skip_topk_offset")
        ours = SparseAttentionConfig(
            dsa_indexer_topk_freq=frequency, dsa_indexer_skip_topk_offset=2 if offset is None else offset
        )
        kinds = [[*_KINDS][ours.is_shared(layer)] for layer in range(layers)]
    letters = [_KINDS.get(kind, str(kind)) for kind in kinds or pattern or ()]
    if {*letters} - {*_KINDS.values()} or len(letters) < layers or letters[:1] != ["F"]:
        raise ValueError(f"config.json: indexer_types {kinds or pattern}: full or shared for each layer, full first")
    return {_PATTERN: "".join(letters[:layers]) if "S" in letters[:layers] else None}


def _choices_out(ours: Settings) -> Mapping[str, Any]:
    layers = ours["model_config.num_layers"]
    sparse = SparseAttentionConfig(
        dsa_indexer_topk_freq=ours["model_config.sparse_attention.dsa_indexer_topk_freq"],
        dsa_indexer_skip_topk_offset=ours["model_config.sparse_attention.dsa_indexer_skip_topk_offset"],
        index_topk_pattern=ours[_PATTERN],
    )
    return {"indexer_types": [[*_KINDS][sparse.is_shared(layer)] for layer in range(layers)]}


_SPARSE_LAYERS: tuple[Parameter, ...] = (*DEEPSEEK, *indexer_rows(INDEXER_NEIGHBOURS))
SPARSE_MOE: tuple[AnyField, ...] = (
    *fields.DEEPSEEK,
    *experts.DEEPSEEK_V3,
    *fields.INDEXER,
    Group(
        ("num_hidden_layers", *_CHOICES),
        _choices,
        _choices_out,
    ),
    Field("model_config.sparse_attention.index_share_for_mtp_iteration", "index_share_for_mtp_iteration", False),
    Must("mlp_bias", (False, None)),
)

FAMILIES = (
    Family("glm4_moe", "Glm4MoeForCausalLM", MOE, (*_LAYERS, *further(_LAYERS)), _OF_MOE, "model."),
    Family(
        "glm_moe_dsa",
        "GlmMoeDsaForCausalLM",
        SPARSE_MOE,
        (*_SPARSE_LAYERS, *further(_SPARSE_LAYERS)),
        {**OF_DEEPSEEK, **SIGMOID, **SPARSE},
        "model.",
    ),
)
