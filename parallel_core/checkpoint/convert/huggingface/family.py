"""A family of HuggingFace's models, and parts that many have in common: names of parameters, and settings.

{layer} and {expert} stand for numbers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parallel_core.checkpoint.convert.huggingface.kinds import AnyField
from parallel_core.checkpoint.convert.huggingface.rules import BESIDE, GATED, INDEXER, QKV, SAME, Rule

OURS, THEIRS = "decoder.layers.{layer}.", "model.layers.{layer}."

FURTHER_LAYERS = "mtp.layers.", "model.mtp."
"""Beginnings of the names of multi-token prediction's layers: ours, and that in the tables, where they are numbered
from 0."""

Parameter = tuple[str, tuple[str, ...], Rule]
"""(our name, their names, the rule that makes ours of theirs and back)."""


@dataclass(frozen=True)
class Family:
    """The models of one `model_type`, or those of them that `reads` accepts; they share one class of transformers,
    `architecture`. fields: the rows of their settings; parameters: the rows of their parameters' names; fixed: path ->
    value of settings that all of them have."""

    model_type: str
    architecture: str
    fields: tuple[AnyField, ...]
    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Any]
    """Path -> value of settings that all of its models have."""
    optional_prefix: str
    """The prefix of names that is missing in files which hold the model without its output layer."""
    stacks_experts: bool = False
    """Whether in files each weight and each bias of a layer's experts is stacked along the first axis of one tensor."""
    reads: Callable[[Mapping[str, Any]], bool] = lambda config: True
    """Whether a config.json of this `model_type` is of one of its models, where several families share the type."""
    repeats_ends: bool = True
    """Whether files have a copy of the embedding and of the output layer for each layer of multi-token prediction."""

    @property
    def predicts_further(self) -> bool:
        """Whether the family's parameters include layers of multi-token prediction."""
        return any(ours.startswith(FURTHER_LAYERS[0]) for ours, _, _ in self.parameters)


def layer(ours: str, *theirs: str, rule: Rule = SAME) -> Parameter:
    return OURS + ours, tuple(THEIRS + name for name in theirs), rule


EMBEDDINGS: tuple[Parameter, ...] = (
    ("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), SAME),
    ("decoder.final_layernorm.weight", ("model.norm.weight",), SAME),
    ("output_layer.weight", ("lm_head.weight",), SAME),
)
NORMS = (
    layer("input_layernorm.weight", "input_layernorm.weight"),
    layer("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
)
QKV_ROWS = tuple(
    layer(f"self_attention.linear_qkv.{kind}", *(f"self_attn.{part}_proj.{kind}" for part in "qkv"), rule=QKV)
    for kind in ("weight", "bias")
)
ATTENTION = (
    *QKV_ROWS,
    layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    layer("self_attention.linear_proj.bias", "self_attn.o_proj.bias"),
    layer("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
    layer("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
)
LATENT_ATTENTION = (
    layer("self_attention.linear_q_proj.weight", "self_attn.q_proj.weight"),
    layer("self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight"),
    layer("self_attention.q_layernorm.weight", "self_attn.q_a_layernorm.weight"),
    layer("self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight"),
    layer("self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    layer("self_attention.kv_layernorm.weight", "self_attn.kv_a_layernorm.weight"),
    layer("self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight"),
    layer("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
)


def gated(
    ours: str, theirs: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> tuple[Parameter, ...]:
    return tuple(
        row
        for kind in ("weight", "bias")
        for row in (
            layer(f"{ours}.linear_fc1.{kind}", f"{theirs}.{gate}.{kind}", f"{theirs}.{up}.{kind}", rule=GATED),
            layer(f"{ours}.linear_fc2.{kind}", f"{theirs}.{down}.{kind}"),
        )
    )


MLP = gated("mlp", "mlp")
EXPERTS = (
    layer("mlp.router.weight", "mlp.gate.weight"),
    *gated("mlp.experts.local_experts.{expert}", "mlp.experts.{expert}"),
)
LLAMA = (*EMBEDDINGS, *NORMS, *ATTENTION, *MLP)
MIXTRAL = (
    *EMBEDDINGS,
    *NORMS,
    *ATTENTION,
    layer("mlp.router.weight", "block_sparse_moe.gate.weight"),
    *gated("mlp.experts.local_experts.{expert}", "block_sparse_moe.experts.{expert}", "w1", "w3", "w2"),
)


def indexer_rows(rule: Rule = INDEXER) -> tuple[Parameter, ...]:
    ours, theirs = "self_attention.core_attention.indexer", "self_attn.indexer"
    heads = (("linear_wq_b.weight", "wq_b.weight"), ("linear_wk.weight", "wk.weight"))
    norms = ((f"k_norm.{kind}", f"k_norm.{kind}") for kind in ("weight", "bias"))
    return (
        *(layer(f"{ours}.{one}", f"{theirs}.{other}", rule=rule) for one, other in (*heads, *norms)),
        layer(f"{ours}.linear_weights_proj.weight", f"{theirs}.weights_proj.weight"),
    )


INDEXER_ROWS = indexer_rows()
DEEPSEEK = (
    *EMBEDDINGS,
    *NORMS,
    *LATENT_ATTENTION,
    *MLP,
    *EXPERTS,
    *gated("mlp.shared_experts", "mlp.shared_experts"),
    layer("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
)


ENDS = "embedding.word_embeddings.weight", "output_layer.weight"
"""The model's parameters of which a layer of multi-token prediction may have copies, or tables of its own instead."""


def further_rows(
    rows: Iterable[Parameter], own: Mapping[str, str | tuple[str, ...]], start: str, of_layers: str
) -> tuple[Parameter, ...]:
    """Rows for layers of multi-token prediction: the model's layer rows in `rows`, with `start` in place of `of_layers`
    in the files' names and `mtp.layers.{layer}.transformer_layer.` in place of `decoder.layers.{layer}.` in ours, and
    each layer's own rows. own: our name behind `mtp.layers.{layer}.` -> theirs behind `start`; for two names, two
    matrices whose columns stand side by side in ours."""
    ours, in_layer = f"{FURTHER_LAYERS[0]}{{layer}}.", "transformer_layer."
    return (
        *(
            (name.replace(OURS, ours + in_layer), tuple(one.replace(of_layers, start) for one in theirs), rule)
            for name, theirs, rule in rows
            if name.startswith(OURS)
        ),
        *(
            (ours + name, tuple(start + one for one in names), SAME if len(names) == 1 else BESIDE)
            for name, theirs in own.items()
            for names in [(theirs,) if isinstance(theirs, str) else theirs]
        ),
    )


def further(rows: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Rows, made of the model's `rows`, for layers of multi-token prediction in files that number them as layers beyond
    the last (DeepSeek-V3). The new rows name these layers `model.mtp.{layer}.`, counted from 0."""
    own = {
        "enorm.weight": "enorm.weight",
        "hnorm.weight": "hnorm.weight",
        "eh_proj.weight": "eh_proj.weight",
        "final_layernorm.weight": "shared_head.norm.weight",
        **dict(zip(ENDS, ("embed_tokens.weight", "shared_head.head.weight"), strict=True)),
    }
    return further_rows(rows, own, f"{FURTHER_LAYERS[1]}{{layer}}.", THEIRS)


DENSE = {"moe_config.num_experts": None, "model_config.multi_latent_attention.enabled": False}
WITH_ANY_BIAS: dict[str, Any] = {
    "model_config.normalization": "RMSNorm",
    "model_config.hidden_act": "swiglu",
    "model_config.position_embedding_type": "rope",
    "model_config.rotary_interleaved": False,
    "model_config.apply_layernorm_1p": False,
    "model_config.multi_latent_attention.enabled": False,
    "model_config.qk_layernorm": False,
}
OF_LLAMA = {**WITH_ANY_BIAS, "model_config.add_bias_linear": False}
HEAD_NORMS = {"model_config.qk_layernorm": True}
OF_ALL_HEADS = {"model_config.qk_norm_type": "per_layer"}
NO_OTHER_BIAS = {"model_config.out_proj_has_bias": False, "model_config.mlp_has_bias": False}
NO_BIAS = {"model_config.qkv_has_bias": False, **NO_OTHER_BIAS}
QKV_BIAS = {"model_config.qkv_has_bias": True, **NO_OTHER_BIAS}
NO_SHARED = {"moe_config.moe_shared_expert_intermediate_size": None}
OF_DEEPSEEK = {**OF_LLAMA, **HEAD_NORMS, "model_config.multi_latent_attention.enabled": True}
SIGMOID = {"moe_config.moe_router_score_function": "sigmoid", "moe_config.moe_router_enable_expert_bias": True}
SOFTMAX = {"moe_config.moe_router_score_function": "softmax"}
SPARSE = {"model_config.sparse_attention.variant": "dsa"}
