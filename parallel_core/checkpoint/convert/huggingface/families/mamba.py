"""Mamba-2 (Dao and Gu, 2024), and Nemotron-H (NVIDIA, 2025): layers of one part each.

In these tables names of a layer's parameters have its kind behind its number, as `read.by_kind` gives it; files lack
it.
"""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import OURS, SIGMOID, Family, Parameter
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rules import QKV, SAME, Rule
from parallel_core.config.hybrid import ATTENTION, EXPERTS, MAMBA, MLP

_PATTERN, _HEADS = "model_config.hybrid.layer_pattern", "model_config.num_attention_heads"
_LETTERS = {
    "mamba": MAMBA, "linear_attention": MAMBA, "attention": ATTENTION, "full_attention": ATTENTION, "mlp": MLP,
    "moe": EXPERTS,
}  # fmt: skip
_WORDS = {MAMBA: "linear_attention", ATTENTION: "full_attention", MLP: "mlp", EXPERTS: "moe"}


def _row(kind: str, ours: str, *theirs: str, rule: Rule = SAME) -> Parameter:
    return OURS + ours, tuple(f"backbone.layers.{{layer}}.{kind}.{name}" for name in theirs), rule


_ENDS: tuple[Parameter, ...] = (
    ("embedding.word_embeddings.weight", ("backbone.embeddings.weight",), SAME),
    ("decoder.final_layernorm.weight", ("backbone.norm_f.weight",), SAME),
    ("output_layer.weight", ("lm_head.weight",), SAME),
)
_STATE_SPACE = (
    _row("mamba", "norm.weight", "norm.weight"),
    *(
        _row("mamba", f"mixer.{name}", f"mixer.{name}")
        for name in (
            *("dt_bias", "A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias"),
            *("norm.weight", "out_proj.weight"),
        )
    ),
)


def _feed_forward(kind: str, ours: str, theirs: str) -> tuple[Parameter, ...]:
    return (
        _row(kind, f"{ours}.linear_fc1.weight", f"{theirs}.up_proj.weight"),
        _row(kind, f"{ours}.linear_fc2.weight", f"{theirs}.down_proj.weight"),
    )


_OTHERS = (
    _row("attention", "input_layernorm.weight", "norm.weight"),
    _row("attention", "self_attention.linear_qkv.weight", *(f"mixer.{part}_proj.weight" for part in "qkv"), rule=QKV),
    _row("attention", "self_attention.linear_proj.weight", "mixer.o_proj.weight"),
    _row("mlp", "pre_mlp_layernorm.weight", "norm.weight"),
    *_feed_forward("mlp", "mlp", "mixer"),
    _row("moe", "pre_mlp_layernorm.weight", "norm.weight"),
    _row("moe", "mlp.router.weight", "mixer.gate.weight"),
    _row("moe", "mlp.router.expert_bias", "mixer.gate.e_score_correction_bias"),
    *_feed_forward("moe", "mlp.experts.local_experts.{expert}", "mixer.experts.{expert}"),
    *_feed_forward("moe", "mlp.shared_experts", "mixer.shared_experts"),
)


def _all_mamba(config: Mapping[str, Any]) -> Settings:
    """The settings of a model whose layers are all Mamba-2; our configuration needs a number of attention heads all the
    same."""
    return {_PATTERN: MAMBA * config["num_hidden_layers"], _HEADS: config["num_heads"]}


def _all_mamba_out(ours: Settings) -> Mapping[str, Any]:
    if {*(ours[_PATTERN] or "")} != {MAMBA}:
        raise ValueError(f"--hybrid-layer-pattern {ours[_PATTERN]}: all layers of its models are state spaces")
    inner = ours["model_config.hybrid.mamba_num_heads"] * ours["model_config.hybrid.mamba_head_dim"]
    return {"expand": inner / ours["model_config.hidden_size"] if inner % ours["model_config.hidden_size"] else
            inner // ours["model_config.hidden_size"]}  # fmt: skip


def _pattern(config: Mapping[str, Any]) -> Settings:
    kinds = config.get("layers_block_type")
    if kinds is None:
        pattern = config.get("hybrid_override_pattern")
        if not pattern:
            raise ValueError("config.json has neither layers_block_type nor hybrid_override_pattern; add one of them")
    else:
        unknown = sorted({*kinds} - _LETTERS.keys())
        if unknown:
            raise ValueError(f"config.json: layers_block_type has {unknown[0]!r}; known are {', '.join(_LETTERS)}")
        pattern = "".join(_LETTERS[kind] for kind in kinds)
    found: Settings = {_PATTERN: pattern, "model_config.num_layers": len(pattern)}
    if EXPERTS not in pattern:
        return found
    return found | {"moe_config.moe_layer_freq": [int(letter == EXPERTS) for letter in pattern]}


def _pattern_out(ours: Settings) -> Mapping[str, Any]:
    pattern = ours[_PATTERN]
    if pattern is None:
        raise ValueError("--hybrid-layer-pattern None: its models have one; give it")
    return {"layers_block_type": [_WORDS[letter] for letter in pattern], "hybrid_override_pattern": pattern}


_EXPERTS = {
    "moe_config.num_experts": "n_routed_experts",
    "moe_config.moe_router_topk": "num_experts_per_tok",
    "moe_config.moe_ffn_hidden_size": "moe_intermediate_size",
    "moe_config.moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "moe_config.moe_router_topk_scaling_factor": "routed_scaling_factor",
}


_GROUPS = experts.groups(of_group=2)


def _of_experts(config: Mapping[str, Any]) -> Settings:
    """The settings of experts, whose routers choose by a sigmoid; empty for a model without layers of experts."""
    if EXPERTS not in _pattern(config)[_PATTERN]:
        return {}
    found: Settings = {ours: config[theirs] for ours, theirs in _EXPERTS.items() if config.get(theirs) is not None}
    return found | SIGMOID | _GROUPS.to_ours({"n_group": 1, **config})


def _of_experts_out(ours: Settings) -> Mapping[str, Any]:
    if EXPERTS not in ours[_PATTERN]:
        return {}
    found = {theirs: ours.get(path) for path, theirs in _EXPERTS.items()}
    found["routed_scaling_factor"] = found["routed_scaling_factor"] or 1.0
    return {**found, **_GROUPS.to_theirs(ours), "n_shared_experts": 1}


_STATES: tuple[AnyField, ...] = (
    Field("model_config.hybrid.mamba_num_groups", "n_groups"),
    Field("model_config.hybrid.mamba_d_conv", "conv_kernel", 4),
    Field("model_config.hybrid.mamba_conv_bias", "use_conv_bias", True),
    Must("use_bias", (False, None)),
    fields.ANY_STEP,
)
_SIZES: tuple[AnyField, ...] = (
    *fields.COMMON,
    Field("model_config.hidden_size", "hidden_size"),
    Field("model_config.max_position_embeddings", "max_position_embeddings", 2048),
    Field("model_config.norm_epsilon", "layer_norm_epsilon", 1e-5),
    always("model_config.hidden_dropout_rate", 0.0),
)
MAMBA2: tuple[AnyField, ...] = (
    *_SIZES,
    fields.tied(False),
    *_STATES,
    Field("model_config.num_layers", "num_hidden_layers"),
    Field("model_config.hybrid.mamba_num_heads", "num_heads"),
    Field("model_config.hybrid.mamba_head_dim", "head_dim"),
    Field("model_config.hybrid.mamba_state_dim", "state_size"),
    Group(("num_hidden_layers", "num_heads", "expand"), _all_mamba, _all_mamba_out),
    fields.SILU,
)
_KEYS = "layers_block_type", "hybrid_override_pattern"
_UNTIED = "model_config.untie_embeddings_and_output_weights"
NEMOTRON_H: tuple[AnyField, ...] = (
    *_SIZES,
    Group(("tie_word_embeddings",), lambda _: {_UNTIED: True}, lambda _: {"tie_word_embeddings": False}),
    *_STATES,
    fields.HEADS,
    Field("model_config.ffn_hidden_size", "intermediate_size"),
    Field("model_config.attention_dropout_rate", "attention_dropout", 0.0),
    Field("model_config.hybrid.mamba_num_heads", "mamba_num_heads"),
    Field("model_config.hybrid.mamba_head_dim", "mamba_head_dim"),
    Field("model_config.hybrid.mamba_state_dim", "ssm_state_size"),
    Group(_KEYS, _pattern, _pattern_out),
    Group(
        (
            "layers_block_type",
            "hybrid_override_pattern",
            *_EXPERTS.values(),
            "n_group",
            "topk_group",
            "n_shared_experts",
        ),
        _of_experts,
        _of_experts_out,
    ),
    Must("mlp_hidden_act", ("relu2",)),
    Must("mamba_hidden_act", ("silu", None)),
    Must("norm_topk_prob", (True, None)),
    Must("moe_latent_size", (None,)),
    Must("attention_bias", (False, None)),
    Must("mlp_bias", (False, None)),
    Must("mamba_proj_bias", (False, None)),
    Must("sliding_window", (None,)),
    Must("hidden_dropout", (0.0, None)),
)
_FIXED: dict[str, Any] = {
    "model_config.normalization": "RMSNorm",
    "model_config.position_embedding_type": "none",
    "model_config.apply_layernorm_1p": False,
    "model_config.qk_layernorm": False,
    "model_config.add_bias_linear": False,
    "model_config.qkv_has_bias": False,
    "model_config.out_proj_has_bias": False,
    "model_config.mlp_has_bias": False,
    "model_config.multi_latent_attention.enabled": False,
}
_DENSE = {"moe_config.num_experts": None}

FAMILIES = (
    Family("mamba2", "Mamba2ForCausalLM", MAMBA2, (*_ENDS, *_STATE_SPACE), {**_FIXED, **_DENSE}, "backbone."),
    Family(
        "nemotron_h",
        "NemotronHForCausalLM",
        NEMOTRON_H,
        (*_ENDS, *_STATE_SPACE, *_OTHERS),
        {**_FIXED, "model_config.hidden_act": "squared_relu"},
        "backbone.",
    ),
)
