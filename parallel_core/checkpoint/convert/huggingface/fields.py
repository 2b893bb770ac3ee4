"""Settings of the families: our path, the key in config.json, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

REQUIRED = object()
"""A key that must be there: nobody knows its value otherwise."""

Settings = dict[str, Any]
"""Our settings by path."""


def _same(value: Any) -> Any:
    return value


class Field(NamedTuple):
    """One setting."""

    path: str
    key: str
    default: Any = REQUIRED
    """What it is where the key is missing or null."""
    to_ours: Callable[[Any], Any] = _same
    to_theirs: Callable[[Any], Any] = _same


class Group(NamedTuple):
    """Settings that several keys say together."""

    to_ours: Callable[[Mapping[str, Any]], Settings]
    to_theirs: Callable[[Settings], Mapping[str, Any]]


class Must(NamedTuple):
    """A key whose other values are not known here."""

    key: str
    values: tuple[Any, ...]
    """The first is written."""


def _not(value: Any) -> bool:
    return not value


def _rope(config: Mapping[str, Any]) -> Settings:
    """Both spellings: transformers 5 has `rope_parameters`, 4 `rope_theta` and `rope_scaling`."""
    scaling = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = scaling.pop("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise ValueError(
            'config.json has neither "rope_parameters" nor "rope_theta"; add the base that the model was trained with '
            '("rope_theta": 10000.0 for the first LLaMA models)'
        )
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    percent = scaling.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    found: Settings = {"model_config.rotary_base": theta, "model_config.rotary_percent": percent}
    if kind == "default":
        return found
    if kind == "linear":
        return {**found, "model_config.rotary_seq_len_interpolation_factor": scaling["factor"]}
    if kind not in _SCALINGS:
        raise ValueError(
            f"config.json: rope_type {kind!r} is not known; known are {', '.join(_SCALINGS)}, linear, default"
        )
    found["model_config.rope_scaling.type"] = kind
    for name in _SCALINGS[kind]:
        if scaling.get(name) is not None:
            found[f"model_config.rope_scaling.{name}"] = scaling[name]
    if kind == "yarn":
        found["model_config.multi_latent_attention.rotary_scaling_factor"] = scaling["factor"]
    return found


_SCALINGS = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings"),
    "dynamic": ("factor", "original_max_position_embeddings"),
}
"""Kind of scaling -> its numbers."""


def _rope_out(ours: Settings) -> Mapping[str, Any]:
    theta, kind = ours["model_config.rotary_base"], ours.get("model_config.rope_scaling.type")
    factor = ours.get("model_config.rotary_seq_len_interpolation_factor")
    scaling: dict[str, Any] = {}
    if kind is not None:
        numbers = {name: ours.get(f"model_config.rope_scaling.{name}") for name in _SCALINGS[kind]}
        scaling = {"rope_type": kind, **{name: value for name, value in numbers.items() if value is not None}}
    elif factor is not None:
        scaling = {"rope_type": "linear", "factor": factor}
    percent = ours.get("model_config.rotary_percent", 1.0)
    part = {} if percent == 1.0 else {"partial_rotary_factor": percent}
    return {
        "rope_theta": theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta, **part},
        **part,
    }


def _heads(config: Mapping[str, Any]) -> Settings:
    heads, groups = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    found = {
        "model_config.num_attention_heads": heads,
        "model_config.kv_channels": config.get("head_dim") or config["hidden_size"] // heads,
        "model_config.group_query_attention": groups != heads,
    }
    return found if groups == heads else {**found, "model_config.num_query_groups": groups}


def _heads_out(ours: Settings) -> Mapping[str, Any]:
    return {
        "num_attention_heads": ours["model_config.num_attention_heads"],
        "num_key_value_heads": ours["model_config.num_query_groups"],
        "head_dim": ours["model_config.kv_channels"],
    }


def _attention_bias(config: Mapping[str, Any]) -> Settings:
    has = bool(config.get("attention_bias"))
    return {"model_config.qkv_has_bias": has, "model_config.out_proj_has_bias": has}


def _attention_bias_out(ours: Settings) -> Mapping[str, Any]:
    qkv, out = ours["model_config.qkv_has_bias"], ours["model_config.out_proj_has_bias"]
    if qkv != out:
        raise ValueError("only one of linear_qkv and linear_proj has a bias: no key of config.json says that")
    return {"attention_bias": qkv}


def _window(config: Mapping[str, Any]) -> Settings:
    size = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return {"model_config.sliding_window.size": size} if size else {}


def _window_out(ours: Settings) -> Mapping[str, Any]:
    size = ours.get("model_config.sliding_window.size")
    return {"sliding_window": size, "use_sliding_window": size is not None}


def _experts_in(dense: Callable[[Mapping[str, Any], int], bool]) -> Callable[[Mapping[str, Any]], Settings]:
    """Which layers have experts, where `dense` says whether one has none."""

    def read(config: Mapping[str, Any]) -> Settings:
        layers = [int(not dense(config, layer)) for layer in range(config["num_hidden_layers"])]
        return {"moe_config.moe_layer_freq": 1 if all(layers) else layers}

    return read


def _layers_with_experts(ours: Settings) -> list[int]:
    frequency, layers = ours["moe_config.moe_layer_freq"], ours["model_config.num_layers"]
    return [int(i % frequency == 0) for i in range(layers)] if isinstance(frequency, int) else list(frequency)


def _qwen_dense(config: Mapping[str, Any], layer: int) -> bool:
    step = config.get("decoder_sparse_step") or 1
    return layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step != 0


def _qwen_dense_out(ours: Settings) -> Mapping[str, Any]:
    layers = _layers_with_experts(ours)
    return {"decoder_sparse_step": 1, "mlp_only_layers": [i for i, has in enumerate(layers) if not has]}


def _deepseek_dense(config: Mapping[str, Any], layer: int) -> bool:
    return layer < (config.get("first_k_dense_replace") or 0) or layer % (config.get("moe_layer_freq") or 1) != 0


def _deepseek_dense_out(ours: Settings) -> Mapping[str, Any]:
    layers = _layers_with_experts(ours)
    first = layers.index(1)
    if not all(layers[first:]):
        raise ValueError(
            f"layers with experts {layers}: DeepSeek's config.json can only say how many dense ones come first"
        )
    return {"first_k_dense_replace": first, "moe_layer_freq": 1}


def _shared(config: Mapping[str, Any]) -> Settings:
    count = config.get("n_shared_experts")
    return {"moe_config.moe_shared_expert_intermediate_size": count * config["moe_intermediate_size"]} if count else {}


def _shared_out(ours: Settings) -> Mapping[str, Any]:
    size, one = ours.get("moe_config.moe_shared_expert_intermediate_size"), ours["moe_config.moe_ffn_hidden_size"]
    if size is not None and size % one:
        raise ValueError(
            f"--moe-shared-expert-intermediate-size {size}: must be a multiple of --moe-ffn-hidden-size {one}"
        )
    return {"n_shared_experts": None if size is None else size // one}


def _groups(config: Mapping[str, Any]) -> Settings:
    """Group-limited routing; a single group is none."""
    count, best = config.get("n_group") or 1, config.get("topk_group")
    return {"moe_config.moe_router_num_groups": count, "moe_config.moe_router_group_topk": best} if count > 1 else {}


def _groups_out(ours: Settings) -> Mapping[str, Any]:
    count, best = ours.get("moe_config.moe_router_num_groups"), ours.get("moe_config.moe_router_group_topk")
    return {"n_group": count or 1, "topk_group": best or 1}


def _keep_nothing(_: Settings) -> Mapping[str, Any]:
    return {}


AnyField = Field | Group | Must

_COMMON: tuple[AnyField, ...] = (
    Field("model_config.unpadded_vocab_size", "vocab_size"),
    Field("model_config.init_method_std", "initializer_range", 0.02),
)
_BASE: tuple[AnyField, ...] = (
    *_COMMON,
    Field("model_config.num_layers", "num_hidden_layers"),
    Field("model_config.hidden_size", "hidden_size"),
    Field("model_config.ffn_hidden_size", "intermediate_size"),
    Field("model_config.max_position_embeddings", "max_position_embeddings"),
    Field("model_config.norm_epsilon", "rms_norm_eps"),
    Field("model_config.untie_embeddings_and_output_weights", "tie_word_embeddings", False, _not, _not),
    Must("hidden_act", ("silu", "swish")),
    Group(_rope, _rope_out),
)
_HEADS = Group(_heads, _heads_out)
_BIASES: tuple[AnyField, ...] = (
    Group(_attention_bias, _attention_bias_out),
    Field("model_config.mlp_has_bias", "mlp_bias", False),
)
_WINDOW = Group(_window, _window_out)

GPT2: tuple[AnyField, ...] = (
    *_COMMON,
    Field("model_config.num_layers", "n_layer"),
    Field("model_config.hidden_size", "n_embd"),
    Field("model_config.num_attention_heads", "n_head"),
    Field("model_config.max_position_embeddings", "n_positions"),
    Field("model_config.ffn_hidden_size", "n_inner", None),
    Field("model_config.norm_epsilon", "layer_norm_epsilon", 1e-5),
    Field("model_config.untie_embeddings_and_output_weights", "tie_word_embeddings", True, _not, _not),
    Field(
        "model_config.bias_gelu_fusion",
        "activation_function",
        "gelu_new",
        {"gelu_new": True, "gelu_pytorch_tanh": True, "gelu": False}.__getitem__,
        {True: "gelu_new", False: "gelu"}.__getitem__,
    ),
    Must("scale_attn_weights", (True, None)),
    Must("scale_attn_by_inverse_layer_idx", (False, None)),
    Must("add_cross_attention", (False, None)),
)
LLAMA = (*_BASE, _HEADS, *_BIASES)
MISTRAL = (*_BASE, _HEADS, _WINDOW)
QWEN2 = (*_BASE, _HEADS, _WINDOW)
QWEN3 = (*_BASE, _HEADS, _WINDOW, Group(_attention_bias, _attention_bias_out))
_EXPERTS: tuple[AnyField, ...] = (Field("moe_config.moe_router_topk", "num_experts_per_tok"),)
_PRE_SOFTMAX = Field("moe_config.moe_router_pre_softmax", "norm_topk_prob", False, _not, _not)
MIXTRAL = (
    *_BASE,
    _HEADS,
    _WINDOW,
    *_EXPERTS,
    Field("moe_config.num_experts", "num_local_experts"),
    Group(lambda _: {"moe_config.moe_router_pre_softmax": False}, _keep_nothing),
)
_QWEN_MOE = (
    *_BASE,
    _HEADS,
    _WINDOW,
    *_EXPERTS,
    _PRE_SOFTMAX,
    Field("moe_config.num_experts", "num_experts"),
    Field("moe_config.moe_ffn_hidden_size", "moe_intermediate_size"),
    Group(_experts_in(_qwen_dense), _qwen_dense_out),
)
QWEN2_MOE = (
    *_QWEN_MOE,
    Field("moe_config.moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"),
    Must("qkv_bias", (True, None)),
)
QWEN3_MOE = (*_QWEN_MOE, Group(_attention_bias, _attention_bias_out))
_DEEPSEEK = (
    *_BASE,
    Field("model_config.num_attention_heads", "num_attention_heads"),
    *_EXPERTS,
    Field("moe_config.num_experts", "n_routed_experts"),
    Field("moe_config.moe_ffn_hidden_size", "moe_intermediate_size"),
    Field("moe_config.moe_router_topk_scaling_factor", "routed_scaling_factor", 1.0),
    Field("model_config.multi_latent_attention.q_lora_rank", "q_lora_rank", None),
    Field("model_config.multi_latent_attention.kv_lora_rank", "kv_lora_rank"),
    Field("model_config.multi_latent_attention.qk_head_dim", "qk_nope_head_dim"),
    Field("model_config.multi_latent_attention.qk_pos_emb_head_dim", "qk_rope_head_dim"),
    Field("model_config.multi_latent_attention.v_head_dim", "v_head_dim"),
    Must("attention_bias", (False, None)),
    Group(_experts_in(_deepseek_dense), _deepseek_dense_out),
    Group(_shared, _shared_out),
    Group(_groups, _groups_out),
)
DEEPSEEK_V3 = (*_DEEPSEEK, Must("norm_topk_prob", (True,)), Must("rope_interleave", (True, None)))
DEEPSEEK_V2 = (*_DEEPSEEK, _PRE_SOFTMAX, Must("scoring_func", ("softmax", None)))
