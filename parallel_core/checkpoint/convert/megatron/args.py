"""The entry `args` of a Megatron checkpoint: our settings out of it, and `args` out of our settings.

Most options whose flag has the name of an entry (--num-layers: num_layers) have that entry's value; a table of `Row`s,
and code in the functions, translate others.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from parallel_core.attention.rotary import YARN_ORIGINAL_LENGTH
from parallel_core.checkpoint import networks
from parallel_core.checkpoint.convert.model import Position
from parallel_core.checkpoint.torch_files.pickles import StandIn, TypeName
from parallel_core.config import AllConfig, serialise
from parallel_core.config.hybrid import EXPERTS, SIDE_BY_SIDE, spread
from parallel_core.config.moe import SPARSE_MIXER
from parallel_core.config.tree import FLAG_OF, OF_MODEL


class Row(NamedTuple):
    """A row: the path of our option, the entries of `args` that fill it (the first that is there counts), and a
    function from the entry's value to ours."""

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
"""Paths of options whose flag means something else in `args` (--vocab-size is none with a real tokenizer, and one less
than the truth with a NullTokenizer), or says nothing of the network."""

_OF_A_RUN = {
    "parallel_config": (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "virtual_pipeline_model_parallel_size",
        "expert_model_parallel_size",
    ),
    "dataset_config": ("tokenizer_type", "tokenizer_model"),
}
"""Section -> entries that are not of the network but are taken over by --use-checkpoint-args."""

_ACTIVATIONS = tuple((name, name) for name in ("swiglu", "squared_relu", "quick_geglu"))

_ONLY_OURS = {
    "use_sandwich_norm", "use_final_norm", "embedding_layernorm", "output_layer_bias", "out_proj_has_bias", "scales",
    "latent_norm_epsilon", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast",
    "beta_slow", "long_factor", "short_factor", "long_mscale", "short_mscale", "fa_config",
    "share_embedding_and_output_weight", "moe_router_norm_topk_prob", "moe_router_group_score_topk", "qk_norm_type",
    "local_rotary_base", "num_zero_experts", "moe_shortcut_connected", "scale_q_lora", "scale_kv_lora",
    "mamba_d_conv", "dsa_indexer_k_norm_epsilon", "dsa_indexer_topk_freq", "dsa_indexer_skip_topk_offset",
    "mamba_conv_bias", "index_topk_pattern", "index_share_for_mtp_iteration", "compressed_attention",
    "hyper_connections", "hash_layers", "mamba_rms_norm", "mamba_multipliers", "side_by_side_weights",
    "cla_share_factor", "qk_norm_after_rotary",
}  # fmt: skip
"""Options of the network, by a part of their paths, that Megatron 0.16.1 has no flag for."""

_NO_CHOICES = {
    "position_embedding_type": ("alibi", "none"),
    "moe_router_load_balancing_type": (SPARSE_MIXER, "none"),
}
"""Entry -> (the value that Megatron's flag does not have, one that it has)."""

_NEGATIONS = ("no_", "disable_")

_ONLY_MEGATRONS: dict[str, Any] = {
    "heterogeneous_layers_config_path": None,
    "heterogeneous_layers_config_encoded_json": None,
    "moe_apply_probs_on_input": False,
    "moe_latent_size": None,
    "mrope_section": None,
    "no_rope_freq": None,
    "qk_l2_norm": False,
}
"""Entry that changes the network and that none of our options has -> the value with which it changes nothing."""


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """Section -> option -> value of our configuration, from Megatron's `args`; most values of another type than the
    option's are left out, a few raise TypeError. Raises ValueError for some entries, such as moe_latent_size, whose
    value makes a network that is not known here."""
    for name, usual in _ONLY_MEGATRONS.items():
        if args.get(name) not in (usual, None):
            raise ValueError(f"its args have {name} {args[name]!r}: networks with that are not known here")
    found: dict[str, Any] = {}
    for path, value in (*_by_flag(args), *_by_row(args)):
        if serialise.fits(value, path):
            serialise.put(found, path, value)
    network = found.setdefault("model_config", {})
    network["hidden_act"] = next((ours for name, ours in _ACTIVATIONS if args.get(name)), "gelu")
    if args.get("add_bias_linear"):
        network["qkv_has_bias"] = True
    if args.get("use_mcore_models") or args.get("use_legacy_models") is False:
        network.pop("apply_residual_connection_post_norm", None)  # Megatron-Core has the flag and never reads it
    if args.get("openai_gelu") and network["hidden_act"] == "gelu":
        network["bias_gelu_fusion"] = True
    if args.get("multi_latent_attention") and args.get("rope_type") in (None, "yarn"):
        serialise.put(network, "rope_scaling.type", "yarn")
        original = args.get("original_max_position_embeddings") or YARN_ORIGINAL_LENGTH
        serialise.put(network, "rope_scaling.original_max_position_embeddings", original)
    if network.get("rope_scaling", {}).get("type") is None:
        network.pop("rope_scaling", None)
    if args.get("num_experts") is None:
        found.pop("moe_config", None)
    if not args.get("multi_latent_attention"):
        network.pop("multi_latent_attention", None)
    if not args.get("group_query_attention"):
        network.pop("num_query_groups", None)
    _put_stack(found, args)
    for section, names in _OF_A_RUN.items():
        found[section] = {name: args[name] for name in names if args.get(name) is not None}
    return found


def _put_stack(found: dict[str, Any], args: Mapping[str, Any]) -> None:
    """Put into the settings the pattern of a stack of layers of one part each, which is given or follows from the
    shares of attention and MLP layers (`hybrid_attention_ratio`, `hybrid_mlp_ratio`), and which layers have experts."""
    pattern, layers = args.get("hybrid_override_pattern"), args.get("num_layers")
    if pattern is None and args.get("is_hybrid_model") and isinstance(layers, int):
        pattern = spread(layers, args.get("hybrid_attention_ratio") or 0.0, args.get("hybrid_mlp_ratio") or 0.0)
    if pattern is not None:
        serialise.put(found, "model_config.hybrid.layer_pattern", pattern)
        if "moe_config" in found:
            found["moe_config"]["moe_layer_freq"] = [int(letter == EXPERTS) for letter in pattern]


def _entry(path: str) -> str:
    """The entry of `args` that the flag of the option at `path` fills."""
    return FLAG_OF[path].removeprefix("--").replace("-", "_")


def _by_flag(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path in OF_MODEL:
        name = _entry(path)
        if path not in _NOT_OURS and name in args:
            yield path, not args[name] if name.startswith(_NEGATIONS) else args[name]


def _by_row(args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for row in _ROWS:
        name = next((name for name in row.names if name in args), None)
        if name is not None:
            yield row.path, row.value(args[name])


def position_of(content: Mapping[str, Any], args: Mapping[str, Any]) -> Position:
    """The point that a Megatron run had reached: iteration, samples (each 0 where it is missing or no whole number from
    0 on), schedule (empty where it is no dictionary). content: that of a file; args: its `args`."""
    scheduler = content.get("opt_param_scheduler")
    return Position(
        iteration=_number(content.get("iteration")),
        consumed_samples=_number(args.get("consumed_train_samples")),
        scheduler=dict(scheduler) if isinstance(scheduler, dict) else {},
    )


def _number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def args_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Entry -> value of a file's `args`, torch's types by name, without values of unknown classes; empty if the file
    has no `args`."""
    args = content.get("args")
    entries = args.state if isinstance(args, StandIn) and isinstance(args.state, dict) else args
    if not isinstance(entries, dict):
        return {}
    plain = {name: str(value) if isinstance(value, TypeName) else value for name, value in entries.items()}
    return {name: value for name, value in plain.items() if isinstance(name, str) and not isinstance(value, StandIn)}


def arguments_of(ours: AllConfig) -> dict[str, Any]:
    """Entry -> value of `args` for a configuration's model; sizes of the parallel layout are not among them. Raises
    ValueError for a network that `args` do not describe: read back (`settings_of`) they must give the same."""
    args = {_entry(path): attrgetter(path)(ours) for path in OF_MODEL if _is_written(path)}
    args |= {row.names[0]: attrgetter(row.path)(ours) for row in _ROWS}
    model = ours.model_config
    if SIDE_BY_SIDE in (model.hybrid.layer_pattern or ""):
        raise ValueError(f"no network of Megatron-Core's has\n--hybrid-override-pattern {model.hybrid.layer_pattern}")
    args |= {
        "use_legacy_models": False,
        "is_hybrid_model": model.hybrid.enabled,
        "normalization": networks.meant("model_config.normalization", ours),
        "use_rope_scaling": model.rope_scaling.type == "llama3",
        "rope_type": "yarn" if model.rope_scaling.type == "yarn" else "rope",
        "original_max_position_embeddings": model.rope_scaling.original_max_position_embeddings,
        "swiglu": model.hidden_act == "swiglu",
        "squared_relu": model.hidden_act == "squared_relu",
        "quick_geglu": model.hidden_act == "quick_geglu",
        "norm_epsilon": model.norm_epsilon,
        "add_position_embedding": model.position_embedding_type == "learned_absolute",
        "vocab_size": model.unpadded_vocab_size,
        "window_size": None if model.sliding_window.size is None else (model.sliding_window.size, 0),
        "add_bias_linear": model.mlp_has_bias,
        "moe_router_pre_softmax": networks.shares_of_all(ours),
    }
    args |= {name: usual for name, (only_ours, usual) in _NO_CHOICES.items() if args[name] == only_ours}
    back = settings_of(args)
    network = back["model_config"] | {"unpadded_vocab_size": model.unpadded_vocab_size}
    differs = networks.differences(ours, serialise.config_of({**back, "model_config": network}))
    if differs:
        said = "\n".join(f"{difference} ({difference.path})" for difference in differs)
        raise ValueError(f"no network of Megatron-Core's has\n{said}")
    return args


def _is_written(path: str) -> bool:
    """Whether Megatron's `args` have an entry of the option's name that means the same there."""
    otherwise = _NOT_OURS | {row.path for row in _ROWS}
    return path not in otherwise and _ONLY_OURS.isdisjoint(path.split(".")) and not _entry(path).startswith(_NEGATIONS)
