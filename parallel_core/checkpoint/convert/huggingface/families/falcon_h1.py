"""Falcon-H1 (TII, 2025): attention and Mamba-2 side by side in every layer, and constant factors of inputs and results.

Constants that have the same effect become one: the factor of attention's input multiplies its output and, twice, its
scores; the factor of a state space's input multiplies the results of its first linear.
"""

from collections.abc import Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface import fields
from parallel_core.checkpoint.convert.huggingface.family import (
    ATTENTION,
    DENSE,
    NO_BIAS,
    OF_LLAMA,
    Family,
    Parameter,
    gated,
    layer,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings
from parallel_core.checkpoint.convert.huggingface.rope import ROPE
from parallel_core.checkpoint.convert.huggingface.rules import SAME
from parallel_core.config.hybrid import SIDE_BY_SIDE

_HYBRID, _SCALES = "model_config.hybrid", "model_config.scales"

_PARAMETERS: tuple[Parameter, ...] = (
    ("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), SAME),
    ("decoder.final_layernorm.weight", ("model.final_layernorm.weight",), SAME),
    ("output_layer.weight", ("lm_head.weight",), SAME),
    layer("input_layernorm.weight", "input_layernorm.weight"),
    layer("pre_mlp_layernorm.weight", "pre_ff_layernorm.weight"),
    *ATTENTION,
    *(
        layer(f"self_attention.mixer.{name}", f"mamba.{name}")
        for name in (
            *("dt_bias", "A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias"),
            *("norm.weight", "out_proj.weight"),
        )
    ),
    *gated("mlp", "feed_forward"),
)


def _pattern(config: Mapping[str, Any]) -> Settings:
    return {f"{_HYBRID}.layer_pattern": SIDE_BY_SIDE * config["num_hidden_layers"]}


def _pattern_out(ours: Settings) -> Mapping[str, Any]:
    pattern = ours[f"{_HYBRID}.layer_pattern"] or ""
    if {*pattern} != {SIDE_BY_SIDE}:
        raise ValueError(f"--hybrid-layer-pattern {pattern}: all layers of its models are {SIDE_BY_SIDE}")
    return {}


def _heads(config: Mapping[str, Any]) -> Settings:
    """The settings of the state space's heads, whose size may follow from the width of all. Raises ValueError if they
    contradict."""
    heads, size = config["mamba_n_heads"], config.get("mamba_d_head", "auto")
    width = config.get("mamba_d_ssm") or config.get("mamba_expand", 2) * config["hidden_size"]
    size = width // heads if size in (None, "auto") else size
    if size * heads != width:
        raise ValueError(f"config.json: mamba_d_ssm {width}: mamba_n_heads {heads} of mamba_d_head {size} are not that")
    return {f"{_HYBRID}.mamba_num_heads": heads, f"{_HYBRID}.mamba_head_dim": size}


def _heads_out(ours: Settings) -> Mapping[str, Any]:
    heads, size = ours[f"{_HYBRID}.mamba_num_heads"], ours[f"{_HYBRID}.mamba_head_dim"]
    return {"mamba_n_heads": heads, "mamba_d_head": size, "mamba_d_ssm": heads * size}


def _norm(config: Mapping[str, Any]) -> Settings:
    has_norm = bool(config.get("mamba_rms_norm"))
    if has_norm and config.get("mamba_norm_before_gate", True):
        raise ValueError("config.json: mamba_norm_before_gate: a norm before the gate is not known here")
    return {f"{_HYBRID}.mamba_rms_norm": has_norm}


def _norm_out(ours: Settings) -> Mapping[str, Any]:
    return {"mamba_rms_norm": ours[f"{_HYBRID}.mamba_rms_norm"], "mamba_norm_before_gate": False}


_MULTIPLIERS = (
    *("key_multiplier", "attention_in_multiplier", "attention_out_multiplier"),
    *("ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier", "mlp_multipliers"),
)


def _multipliers(config: Mapping[str, Any]) -> Settings:
    def number(key: str) -> float:
        return 1.0 if config.get(key) is None else float(config[key])

    enters, of_state_space = number("attention_in_multiplier"), number("ssm_in_multiplier")
    parts = [of_state_space * float(each) for each in config.get("ssm_multipliers") or [1.0] * 5]
    weights = [enters * number("attention_out_multiplier"), number("ssm_out_multiplier")]
    gate, down = map(float, config.get("mlp_multipliers") or (1.0, 1.0))
    return {
        f"{_SCALES}.key": number("key_multiplier") * enters * enters,
        f"{_HYBRID}.mamba_multipliers": parts if parts != [1.0] * 5 else None,
        f"{_HYBRID}.side_by_side_weights": weights if weights != [1.0, 1.0] else None,
        f"{_SCALES}.gate": gate,
        f"{_SCALES}.mlp_residual": [1.0, down] if down != 1.0 else None,
    }


def _multipliers_out(ours: Settings) -> Mapping[str, Any]:
    of_attention, of_state_space = ours[f"{_HYBRID}.side_by_side_weights"] or (1.0, 1.0)
    residual, down = ours[f"{_SCALES}.mlp_residual"] or (1.0, 1.0)
    if residual != 1.0:
        raise ValueError(f"--mlp-residual-weights {residual} {down}: no key of config.json says the residual's")
    return {
        "key_multiplier": ours[f"{_SCALES}.key"],
        "attention_in_multiplier": 1.0,
        "attention_out_multiplier": of_attention,
        "ssm_in_multiplier": 1.0,
        "ssm_multipliers": list(ours[f"{_HYBRID}.mamba_multipliers"] or [1.0] * 5),
        "ssm_out_multiplier": of_state_space,
        "mlp_multipliers": [ours[f"{_SCALES}.gate"], down],
    }


FIELDS: tuple[AnyField, ...] = (
    *fields.SIZES,
    fields.tied(False),
    fields.SILU,
    ROPE,
    fields.HEADS,
    Must("attention_bias", (False, None)),
    Must("mlp_bias", (False, None)),
    Must("projectors_bias", (False, None)),
    Must("mamba_proj_bias", (False, None)),
    Must("mamba_use_mlp", (True, None)),
    fields.ANY_STEP,
    Group(("num_hidden_layers",), _pattern, _pattern_out),
    Group(("mamba_n_heads", "mamba_d_head", "mamba_d_ssm", "mamba_expand", "hidden_size"), _heads, _heads_out),
    Field(f"{_HYBRID}.mamba_num_groups", "mamba_n_groups", 1),
    Field(f"{_HYBRID}.mamba_state_dim", "mamba_d_state", 256),
    Field(f"{_HYBRID}.mamba_d_conv", "mamba_d_conv", 4),
    Field(f"{_HYBRID}.mamba_conv_bias", "mamba_conv_bias", True),
    Group(("mamba_rms_norm", "mamba_norm_before_gate"), _norm, _norm_out),
    Field(f"{_SCALES}.embedding", "embedding_multiplier", 1.0),
    Field(f"{_SCALES}.logits", "lm_head_multiplier", 1.0),
    Group(_MULTIPLIERS, _multipliers, _multipliers_out),
)

FAMILIES = (
    Family("falcon_h1", "FalconH1ForCausalLM", FIELDS, _PARAMETERS, {**OF_LLAMA, **DENSE, **NO_BIAS}, "model."),
)
