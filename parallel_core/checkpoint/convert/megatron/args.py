"""`args`, which a Megatron checkpoint keeps: our settings out of it, and one out of our settings.

Most of our fields are filled by a flag of Megatron's, whose destination is the entry's name: that is the rule, and the
rows are what it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from parallel_core.checkpoint.convert import networks, settings
from parallel_core.checkpoint.convert.model import Position
from parallel_core.checkpoint.torch_files.pickles import StandIn, TypeName
from parallel_core.rope_scaling import LLAMA3_ORIGINAL_LENGTH, YARN_ORIGINAL_LENGTH


class Row(NamedTuple):
    """Entries of `args` that fill one of our fields: the first that is there."""

    path: str
    names: tuple[str, ...]
    value: Callable[[Any], Any] = lambda value: value


_ROWS = (
    Row("model_config.norm_epsilon", ("layernorm_epsilon", "norm_epsilon")),
    Row("model_config.apply_layernorm_1p", ("layernorm_zero_centered_gamma", "apply_layernorm_1p")),
    Row("model_config.add_bias_linear", ("add_bias_linear",)),
    Row("model_config.qkv_has_bias", ("add_qkv_bias",)),
    Row("model_config.bias_gelu_fusion", ("bias_gelu_fusion",)),
    Row("model_config.rope_scaling.type", ("use_rope_scaling",), lambda used: "llama3" if used else None),
    Row("model_config.rope_scaling.mscale", ("mscale",)),
    Row("model_config.rope_scaling.mscale_all_dim", ("mscale_all_dim",)),
    Row("model_config.sliding_window.size", ("window_size",), lambda window: window and window[0]),
)

_NOT_OURS = {
    f"model_config.{name}"
    for name in ("unpadded_vocab_size", "mlp_has_bias", "hidden_act", "transformer_impl", "use_flash_attention")
}
"""Fields whose flag means something else in `args` (--vocab-size is none with a real tokenizer, and one less than the
truth with a NullTokenizer), or says nothing of the network."""

_NOT_MEGATRONS = (
    "moe_config.moe_router_group_score_topk",
    "model_config.multi_latent_attention.latent_norm_epsilon",
)

_OF_A_RUN = {
    "parallel_config": (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "expert_model_parallel_size",
    ),
    "dataset_config": ("tokenizer_type", "tokenizer_model"),
}
"""Entries that say nothing of the network: --use-checkpoint-args asks for them."""

_ACTIVATIONS = (("swiglu", "swiglu"), ("squared_relu", "squared_relu"))


_ONLY_OURS: dict[str, Any] = {
    "model_config.apply_residual_connection_post_norm": False,
    "model_config.use_sandwich_norm": False,
    "model_config.use_final_norm": True,
    "model_config.embedding_layernorm": False,
    "model_config.output_layer_bias": False,
    "model_config.scales.embedding": 1.0,
    "model_config.scales.residual": 1.0,
    "model_config.scales.logits": 1.0,
    "model_config.scales.logit_cap": None,
    "model_config.scales.attention_cap": None,
    "model_config.scales.attention": None,
    "model_config.multi_token_prediction.share_embedding_and_output_weight": True,
}
"""What Megatron's networks lack, and the value that means nothing of it."""


_ONLY_MEGATRONS: dict[str, Any] = {
    "activation_func_clamp_value": None,
    "attention_output_gate": False,
    "glu_linear_offset": 0.0,
    "heterogeneous_layers_config_path": None,
    "heterogeneous_layers_config_encoded_json": None,
    "hybrid_override_pattern": None,
    "is_hybrid_model": False,
    "linear_attention_freq": None,
    "moe_apply_probs_on_input": False,
    "moe_latent_size": None,
    "mrope_section": None,
    "no_rope_freq": None,
    "qk_l2_norm": False,
    "quick_geglu": False,
    "softmax_type": "vanilla",
}
"""Entries that change the network and that no setting of ours says, and the value that means nothing of it."""


_NO_SCALINGS = ("dynamic", "longrope")
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": LLAMA3_ORIGINAL_LENGTH}
"""What Megatron has of --use-rope-scaling beside the factor, without a flag."""


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings of Megatron's `args`. Raises ValueError for a network that cannot be built here."""
    for name, usual in _ONLY_MEGATRONS.items():
        if args.get(name) not in (usual, None):
            raise ValueError(f"its args have {name} {args[name]!r}: networks with that are not known here")
    found: dict[str, Any] = {}
    hints = {path: hint for start, cls in settings.SECTIONS.items() for path, _, hint in settings.options(cls, start)}
    for path, value in (*_by_flag(args), *_by_row(args)):
        if settings.fits(value, hints[path]):
            settings.put(found, path, value)
    network = found.setdefault("model_config", {})
    network["hidden_act"] = next((ours for name, ours in _ACTIVATIONS if args.get(name)), "gelu")
    if args.get("add_bias_linear"):
        network["qkv_has_bias"] = True
    if args.get("use_mcore_models") or args.get("use_legacy_models") is False:
        network.pop("apply_residual_connection_post_norm", None)  # Megatron-Core has the flag and does not look at it
    if args.get("openai_gelu") and network["hidden_act"] == "gelu":
        network["bias_gelu_fusion"] = True
    if args.get("multi_latent_attention") and args.get("rope_type") in (None, "yarn"):
        settings.put(network, "rope_scaling.type", "yarn")
        original = args.get("original_max_position_embeddings") or YARN_ORIGINAL_LENGTH
        settings.put(network, "rope_scaling.original_max_position_embeddings", original)
    if network.get("rope_scaling", {}).get("type") is None:
        network.pop("rope_scaling", None)
    if args.get("num_experts") is None:
        found.pop("moe_config", None)
    if not args.get("multi_latent_attention"):
        network.pop("multi_latent_attention", None)
    if not args.get("group_query_attention"):
        network.pop("num_query_groups", None)
    for section, names in _OF_A_RUN.items():
        found[section] = {name: args[name] for name in names if args.get(name) is not None}
    return found


def _by_flag(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for start, cls in settings.SECTIONS.items():
        for path, flag, _ in settings.options(cls, start):
            name = flag.removeprefix("--").replace("-", "_")
            if path not in _NOT_OURS and name in args:
                yield path, not args[name] if name.startswith(("no_", "disable_")) else args[name]


def _by_row(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for row in _ROWS:
        name = next((name for name in row.names if name in args), None)
        if name is not None:
            yield row.path, row.value(args[name])


def position_of(content: Mapping[str, Any], args: Mapping[str, Any]) -> Position:
    """Where a Megatron run stood."""
    scheduler = content.get("opt_param_scheduler")
    return Position(
        iteration=_number(content.get("iteration")),
        consumed_samples=_number(args.get("consumed_train_samples")),
        scheduler=dict(scheduler) if isinstance(scheduler, dict) else {},
    )


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def args_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a file's `args`, values of unknown classes left out."""
    args = content.get("args")
    entries = args.state if isinstance(args, StandIn) and isinstance(args.state, dict) else args
    if not isinstance(entries, dict):
        return {}
    plain = {name: str(value) if isinstance(value, TypeName) else value for name, value in entries.items()}
    return {name: value for name, value in plain.items() if isinstance(name, str) and not isinstance(value, StandIn)}


def arguments_of(ours: Mapping[str, Any]) -> dict[str, Any]:
    """`args` of our settings, all of them given: what Megatron compares or takes over when it loads. Raises ValueError
    for what no flag of Megatron's says."""
    _check(ours)
    args: dict[str, Any] = {}
    for start, cls in settings.SECTIONS.items():
        for path, flag, _ in settings.options(cls, start):
            name = flag.removeprefix("--").replace("-", "_")
            if path not in _NOT_OURS and not name.startswith(("no_", "disable_")):
                args[name] = settings.get(ours, path)
    for row in _ROWS:
        args[row.names[0]] = settings.get(ours, row.path)
    network = ours["model_config"]
    args |= {
        "use_rope_scaling": settings.get(network, "rope_scaling.type") == "llama3",
        "swiglu": network["hidden_act"] == "swiglu",
        "squared_relu": network["hidden_act"] == "squared_relu",
        "multi_latent_attention": settings.get(network, "multi_latent_attention.enabled"),
        "rope_type": "yarn" if settings.get(network, "rope_scaling.type") == "yarn" else "rope",
        "original_max_position_embeddings": settings.get(network, "rope_scaling.original_max_position_embeddings"),
        "norm_epsilon": network["norm_epsilon"],
        "add_position_embedding": network["position_embedding_type"] == "learned_absolute",
        "vocab_size": network["unpadded_vocab_size"],
        "padded_vocab_size": network["vocab_size"],
        "window_size": _window(network),
    } | _biases(network)
    return args


def _check(ours: Mapping[str, Any]) -> None:
    judges, epsilon = (settings.get(ours, path) for path in _NOT_MEGATRONS)
    if networks.score_of_group(judges, ours) != networks.score_of_group(None, ours):
        raise ValueError(f"--moe-router-group-score-topk {judges}: Megatron counts k / --moe-router-group-topk experts")
    for path, usual in _ONLY_OURS.items():
        if settings.get(ours, path) not in (usual, None):
            raise ValueError(f"{path} {settings.get(ours, path)}: no network of Megatron-Core's has that")
    scaling = ours["model_config"]["rope_scaling"]
    if scaling["type"] in _NO_SCALINGS:
        raise ValueError(f"--rope-scaling-type {scaling['type']}: no network of Megatron-Core's has that")
    for name, only in _LLAMA3.items() if scaling["type"] == "llama3" else ():
        if scaling[name] not in (only, None):
            raise ValueError(f"rope_scaling.{name} {scaling[name]}: Megatron's networks have {only}")
    others = ours["model_config"]["norm_epsilon"]
    if epsilon not in (None, others):
        raise ValueError(f"--latent-norm-epsilon {epsilon}: Megatron's norms of latents have --norm-epsilon {others}")


def _window(network: Mapping[str, Any]) -> tuple[int, int] | None:
    """Tokens before a query's own and after it."""
    size = settings.get(network, "sliding_window.size")
    return None if size is None else (size, 0)


def _biases(network: Mapping[str, Any]) -> dict[str, bool]:
    """Megatron has one flag for all linears, and one for queries, keys and values alone. Raises ValueError where the
    feed-forward block has biases that attention lacks."""
    qkv, out, mlp = (bool(network[f"{linear}_has_bias"]) for linear in ("qkv", "out_proj", "mlp"))
    if mlp and not (qkv and out):
        raise ValueError("the feed-forward block has biases that attention lacks: no flag of Megatron's says that")
    return {"add_bias_linear": mlp, "add_qkv_bias": qkv}
