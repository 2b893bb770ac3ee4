"""DeepSeek-V4 (2026): several residual streams, a window and compressed entries, in the first layers experts by a table
of tokens.

Names are those of the public files. transformers reads all of them but those of layers that predict further tokens,
`mtp.N`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.checkpoint.convert.huggingface import experts, fields
from parallel_core.checkpoint.convert.huggingface.family import (
    ENDS,
    OF_LLAMA,
    OURS,
    SPARSE,
    Family,
    Parameter,
    further_rows,
)
from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.convert.huggingface.rules import GATED, SAME, Rule
from parallel_core.checkpoint.lazy import of_array
from parallel_core.config.compressed_attention import INDEXED_RATIO

NUMBERS = Rule(
    lambda parts, _: of_array(parts[0].read().astype(np.float32)),
    lambda whole, _: [of_array(whole.read().astype(np.int64))],
)
"""The rule for the table with the experts of each token, whose numbers are int64 in the file and float32 in ours."""

_THEIRS = "layers.{layer}."


def _layer(ours: str, *theirs: str, rule: Rule = SAME) -> Parameter:
    return OURS + ours, tuple(_THEIRS + name for name in theirs), rule


def _experts(ours: str, theirs: str) -> tuple[Parameter, ...]:
    return (
        _layer(f"mlp.{ours}.linear_fc1.weight", f"ffn.{theirs}.w1.weight", f"ffn.{theirs}.w3.weight", rule=GATED),
        _layer(f"mlp.{ours}.linear_fc2.weight", f"ffn.{theirs}.w2.weight"),
    )


def _compressor(ours: str, theirs: str) -> tuple[Parameter, ...]:
    return tuple(
        _layer(f"self_attention.{ours}.{name}", f"attn.{theirs}.{name}")
        for name in ("ape", "wkv.weight", "wgate.weight", "norm.weight")
    )


_STREAMS = ("fn.weight", "fn"), ("base", "base"), ("scale", "scale")
_PARAMETERS: tuple[Parameter, ...] = (
    ("embedding.word_embeddings.weight", ("embed.weight",), SAME),
    ("decoder.final_layernorm.weight", ("norm.weight",), SAME),
    ("output_layer.weight", ("head.weight",), SAME),
    *((f"decoder.hc_head.hc_{ours}", (f"hc_head_{theirs}",), SAME) for ours, theirs in _STREAMS),
    *(
        _layer(f"{cell}.hc_{ours}", f"hc_{part}_{theirs}")
        for cell, part in (("attn_mhc", "attn"), ("mlp_mhc", "ffn"))
        for ours, theirs in _STREAMS
    ),
    _layer("input_layernorm.weight", "attn_norm.weight"),
    _layer("pre_mlp_layernorm.weight", "ffn_norm.weight"),
    *(
        _layer(f"self_attention.{ours}.weight", f"attn.{theirs}.weight")
        for ours, theirs in (
            ("linear_q", "wq_a"),
            ("q_layernorm", "q_norm"),
            ("linear_q_up_proj", "wq_b"),
            ("linear_kv", "wkv"),
            ("kv_layernorm", "kv_norm"),
            ("indexer.linear_wq_b", "indexer.wq_b"),
            ("indexer.linear_weights_proj", "indexer.weights_proj"),
            ("linear_o_down_proj", "wo_a"),
            ("linear_o_up_proj", "wo_b"),
        )
    ),
    _layer("self_attention.core_attention.softmax_offset", "attn.attn_sink"),
    *_compressor("compressor", "compressor"),
    *_compressor("indexer.compressor", "indexer.compressor"),
    _layer("mlp.router.weight", "ffn.gate.weight"),
    _layer("mlp.router.expert_bias", "ffn.gate.bias"),
    _layer("mlp.router.tid2eid", "ffn.gate.tid2eid", rule=NUMBERS),
    *_experts("experts.local_experts.{expert}", "experts.{expert}"),
    *_experts("shared_experts", "shared_experts"),
)
_FURTHER: dict[str, str | tuple[str, ...]] = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "eh_proj.weight": ("e_proj.weight", "h_proj.weight"),
    "final_layernorm.weight": "norm.weight",
    **{f"hc_head.hc_{ours}": f"hc_head_{theirs}" for ours, theirs in _STREAMS},
    **dict(zip(ENDS, ("emb.tok_emb.weight", "head.weight"), strict=True)),
}
_FIXED: dict[str, Any] = {
    **OF_LLAMA,
    **SPARSE,
    "model_config.multi_latent_attention.enabled": True,
    "model_config.qk_layernorm": True,
    "model_config.hyper_connections.enabled": True,
    "moe_config.moe_router_score_function": "sqrtsoftplus",
    "moe_config.moe_router_enable_expert_bias": True,
}

_LATENT, _ENTRIES = "model_config.multi_latent_attention", "model_config.compressed_attention"
_SPARSE, _SCALING = "model_config.sparse_attention", "model_config.rope_scaling"
_WINDOW, _CHOSEN, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"


def _heads(config: Mapping[str, Any]) -> Settings:
    size = config["head_dim"]
    rotary = config.get("qk_rope_head_dim") or int(size * (config.get("partial_rotary_factor") or 0.125))
    return {
        "model_config.num_attention_heads": config["num_attention_heads"],
        f"{_LATENT}.qk_head_dim": size,
        f"{_LATENT}.qk_pos_emb_head_dim": rotary,
    }


def _heads_out(ours: Settings) -> Mapping[str, Any]:
    size, rotary = ours[f"{_LATENT}.qk_head_dim"], ours[f"{_LATENT}.qk_pos_emb_head_dim"]
    return {
        "num_attention_heads": ours["model_config.num_attention_heads"],
        "num_key_value_heads": 1,
        "head_dim": size,
        "qk_rope_head_dim": rotary,
        "partial_rotary_factor": rotary / size,
    }


def _ratios(config: Mapping[str, Any]) -> Settings:
    """The setting of each layer's ratio of compression (0: a window alone): by `layer_types`, by an older list of
    numbers, or as transformers does without either."""
    layers, rates = config["num_hidden_layers"], config.get("compress_rates") or {}
    sizes = {_WINDOW: 0, _CHOSEN: rates.get(_CHOSEN, INDEXED_RATIO), _HEAVY: rates.get(_HEAVY, 128)}
    if sizes[_CHOSEN] != INDEXED_RATIO:
        raise ValueError(f"config.json: compress_rates of {_CHOSEN} {sizes[_CHOSEN]}: known is {INDEXED_RATIO}")
    types = config.get("layer_types")
    if types is not None:
        unknown = sorted({*types} - sizes.keys())
        if unknown:
            raise ValueError(f"config.json: layer_types {unknown[0]!r} is not known; known are {', '.join(sizes)}")
        return {f"{_ENTRIES}.ratios": [sizes[kind] for kind in types[:layers]]}
    if config.get("compress_ratios") is not None:
        return {f"{_ENTRIES}.ratios": list(config["compress_ratios"][:layers])}
    return {f"{_ENTRIES}.ratios": [sizes[_CHOSEN if n > 1 and n % 2 else _HEAVY] for n in range(layers)]}


def _ratios_out(ours: Settings) -> Mapping[str, Any]:
    layers = ours["model_config.num_layers"]
    ratios = [*ours[f"{_ENTRIES}.ratios"], *[0] * layers][:layers]
    heavy = {ratio for ratio in ratios if ratio > 1} - {INDEXED_RATIO}
    if len(heavy) > 1:
        raise ValueError(f"--compress-ratios {sorted(heavy)}: config.json can only say one beside {INDEXED_RATIO}")
    kinds = [_WINDOW if ratio < 2 else _CHOSEN if ratio == INDEXED_RATIO else _HEAVY for ratio in ratios]
    return {"layer_types": kinds, "compress_rates": {_CHOSEN: INDEXED_RATIO, _HEAVY: max(heavy, default=128)}}


def _rope(config: Mapping[str, Any]) -> Settings:
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    nested = "compress" in given
    plain, stretched = (given.get("main", {}), given["compress"]) if nested else ({}, given)
    kind = stretched.get("rope_type") or stretched.get("type") or "default"
    if kind not in ("yarn", "default") or stretched.get("attention_factor") not in (None, 1.0):
        raise ValueError(
            f"config.json: rope_type {kind!r}, attention_factor {stretched.get('attention_factor')}: not known"
        )
    theta = stretched.get("rope_theta") if nested else None
    found = {
        "model_config.rotary_base": plain.get("rope_theta") or config.get("rope_theta") or 10000.0,
        f"{_ENTRIES}.entry_rotary_base": theta or config.get("compress_rope_theta") or 160000.0,
        f"{_ENTRIES}.entry_rotary_factor": stretched.get("factor", 1.0) if kind == "yarn" else 1.0,
    }
    if kind == "yarn":
        length = stretched.get("original_max_position_embeddings") or config["max_position_embeddings"]
        found[f"{_ENTRIES}.original_length"] = length
        found |= {
            f"{_SCALING}.beta_{end}": stretched[f"beta_{end}"] for end in ("fast", "slow") if f"beta_{end}" in stretched
        }
    return found


def _rope_out(ours: Settings) -> Mapping[str, Any]:
    share = {"partial_rotary_factor": ours[f"{_LATENT}.qk_pos_emb_head_dim"] / ours[f"{_LATENT}.qk_head_dim"]}
    plain, theta = ours["model_config.rotary_base"], ours[f"{_ENTRIES}.entry_rotary_base"]
    yarn = {
        "rope_type": "yarn",
        "factor": ours[f"{_ENTRIES}.entry_rotary_factor"],
        "original_max_position_embeddings": ours[f"{_ENTRIES}.original_length"],
        "beta_fast": ours[f"{_SCALING}.beta_fast"],
        "beta_slow": ours[f"{_SCALING}.beta_slow"],
        "attention_factor": 1.0,
    }
    parameters = {
        "main": {"rope_type": "default", "rope_theta": plain, **share},
        "compress": {**yarn, "rope_theta": theta, **share},
    }
    return {"rope_theta": plain, "compress_rope_theta": theta, "rope_parameters": parameters}


def _hashed(config: Mapping[str, Any]) -> Settings:
    types = config.get("mlp_layer_types")
    if types is None:
        count = config.get("num_hash_layers")
        return {"moe_config.hash_layers": 3 if count is None else count}
    count = sum(kind == "hash_moe" for kind in types)
    if any(kind != "hash_moe" for kind in types[:count]):
        raise ValueError(f"config.json: mlp_layer_types {types}: known are layers of which the first are hash_moe")
    return {"moe_config.hash_layers": count}


def _hashed_out(ours: Settings) -> Mapping[str, Any]:
    layers, count = ours["model_config.num_layers"], ours["moe_config.hash_layers"]
    return {"mlp_layer_types": ["hash_moe" if layer < count else "moe" for layer in range(layers)]}


def _dense(config: Mapping[str, Any]) -> Settings:
    """The setting of the dense width, which no layer has: that of an expert is taken."""
    return {"model_config.ffn_hidden_size": config["moe_intermediate_size"]}


FIELDS: tuple[AnyField, ...] = (
    *(field for field in fields.SIZES if not (isinstance(field, Field) and field.key == "intermediate_size")),
    Group(("moe_intermediate_size",), _dense, lambda _: {}),
    fields.tied(False),
    fields.SILU,
    Group(("num_attention_heads", "head_dim", "qk_rope_head_dim", "partial_rotary_factor"), _heads, _heads_out),
    Must("num_key_value_heads", (1, None)),
    Must("attention_bias", (False, None)),
    Must("mlp_bias", (False, None)),
    Field(f"{_LATENT}.q_lora_rank", "q_lora_rank"),
    Field(f"{_ENTRIES}.output_rank", "o_lora_rank"),
    Field(f"{_ENTRIES}.output_groups", "o_groups"),
    Field(f"{_ENTRIES}.window", "sliding_window"),
    Group(("layer_types", "compress_rates", "compress_ratios", "num_hidden_layers"), _ratios, _ratios_out),
    Group(
        ("rope_parameters", "rope_scaling", "rope_theta", "compress_rope_theta", "max_position_embeddings"),
        _rope,
        _rope_out,
    ),
    Field(f"{_SPARSE}.dsa_indexer_n_heads", "index_n_heads"),
    Field(f"{_SPARSE}.dsa_indexer_head_dim", "index_head_dim"),
    Field(f"{_SPARSE}.dsa_indexer_topk", "index_topk"),
    always(f"{_SPARSE}.dsa_indexer_loss_coeff", 0.0),
    Field("model_config.hyper_connections.streams", "hc_mult", 4),
    Field("model_config.hyper_connections.iterations", "hc_sinkhorn_iters", 20),
    Field("model_config.hyper_connections.epsilon", "hc_eps", 1e-6),
    Field("model_config.activation_func_clamp_value", "swiglu_limit", 10.0),
    Group(("mlp_layer_types", "num_hash_layers"), _hashed, _hashed_out),
    experts.CHOSEN,
    experts.WIDTH,
    experts.SCALE,
    Field("moe_config.num_experts", "n_routed_experts"),
    experts.shared("n_shared_experts"),
    Must("scoring_func", ("sqrtsoftplus", None)),
    Must("norm_topk_prob", (True, None)),
    always("moe_config.moe_layer_freq", 1),
)

FAMILIES = (
    Family(
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        FIELDS,
        (*_PARAMETERS, *further_rows(_PARAMETERS, _FURTHER, "mtp.{layer}.", _THEIRS)),
        _FIXED,
        "",
        repeats_ends=False,
    ),
)
