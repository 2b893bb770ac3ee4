"""Experts in config.json: the layers that have them, shared experts, and the router's choice."""

from collections.abc import Callable, Mapping
from typing import Any

from parallel_core.checkpoint.convert.huggingface.kinds import AnyField, Field, Group, Must, Settings, always
from parallel_core.checkpoint.networks import layers_with_experts


def experts_in(dense: Callable[[Mapping[str, Any], int], bool]) -> Callable[[Mapping[str, Any]], Settings]:
    """A function from config.json to the setting of layers that have experts: all but those for which `dense(config,
    layer)` is true."""

    def read(config: Mapping[str, Any]) -> Settings:
        layers = [int(not dense(config, layer)) for layer in range(config["num_hidden_layers"])]
        return {"moe_config.moe_layer_freq": 1 if all(layers) else layers}

    return read


def layers_out(ours: Settings) -> list[int]:
    return layers_with_experts(ours["moe_config.moe_layer_freq"], ours["model_config.num_layers"])


def _qwen_dense(config: Mapping[str, Any], layer: int) -> bool:
    step = config.get("decoder_sparse_step") or 1
    return layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % step != 0


def _qwen_dense_out(ours: Settings) -> Mapping[str, Any]:
    layers = layers_out(ours)
    return {"decoder_sparse_step": 1, "mlp_only_layers": [i for i, has in enumerate(layers) if not has]}


def _deepseek_dense(config: Mapping[str, Any], layer: int) -> bool:
    types = config.get("mlp_layer_types")
    if types is not None:
        return bool(types[layer] == "dense")
    return layer < (config.get("first_k_dense_replace") or 0) or layer % (config.get("moe_layer_freq") or 1) != 0


def _deepseek_dense_out(ours: Settings) -> Mapping[str, Any]:
    layers = layers_out(ours)
    first = layers.index(1)
    if not all(layers[first:]):
        raise ValueError(
            f"layers with experts {layers}: DeepSeek's config.json can only say how many dense ones come first"
        )
    return {"first_k_dense_replace": first, "moe_layer_freq": 1}


def shared(key: str, none: int | None = None) -> Group:
    """The row for shared experts, of which `key` gives the number, each as wide as a routed one. none: the value
    written where our configuration has none. Writing raises ValueError where their width is no multiple of a routed
    one's."""

    def read(config: Mapping[str, Any]) -> Settings:
        count = config.get(key)
        size = "moe_config.moe_shared_expert_intermediate_size"
        return {size: count * config["moe_intermediate_size"]} if count else {}

    def write(ours: Settings) -> Mapping[str, Any]:
        size, one = ours.get("moe_config.moe_shared_expert_intermediate_size"), ours["moe_config.moe_ffn_hidden_size"]
        if size is not None and size % one:
            raise ValueError(
                f"--moe-shared-expert-intermediate-size {size}: must be a multiple of --moe-ffn-hidden-size {one}"
            )
        return {key: none if size is None else size // one}

    return Group((key, "moe_intermediate_size"), read, write)


def groups(of_group: int, method: str | None = None) -> Group:
    """The row for group-limited routing, where a token's experts come from its best groups of experts; a single group
    is no limit. of_group: the number of a group's best experts whose scores tell how good the group is. method: the
    value of `topk_method` with which groups limit the choice; None: they do whatever it is. Reading raises ValueError
    where groups limit the choice and `topk_group` is missing and, with method None, where `n_group` is."""

    def read(config: Mapping[str, Any]) -> Settings:
        if method is None and config.get("n_group") is None:  # transformers' default is 8, which the file may not mean
            raise ValueError("config.json: n_group is missing; add it (1: any group's experts may be chosen)")
        count, best = config.get("n_group") or 1, config.get("topk_group")
        if count == 1 or method not in (None, config.get("topk_method")):
            return {}
        if not best:
            raise ValueError(f"config.json: topk_group {best} with n_group {count}: it must be at least 1")
        found = {"num_groups": count, "group_topk": best}
        if config["num_experts_per_tok"] // best != of_group:
            found["group_score_topk"] = of_group
        return {f"moe_config.moe_router_{name}": value for name, value in found.items()}

    def write(ours: Settings) -> Mapping[str, Any]:
        count, best = ours.get("moe_config.moe_router_num_groups"), ours.get("moe_config.moe_router_group_topk")
        found = {"n_group": count or 1, "topk_group": best or 1}
        return {**found, "topk_method": method if found["n_group"] > 1 else "greedy"} if method else found

    return Group(("n_group", "topk_group", "topk_method", "num_experts_per_tok"), read, write)


def _normalized(config: Mapping[str, Any]) -> Settings:
    """The setting for `norm_topk_prob`: a softmax over the chosen experts equals one over all, divided by the chosen
    ones' sum."""
    return {"moe_config.moe_router_pre_softmax": not config.get("norm_topk_prob")}


def _normalized_out(ours: Settings) -> Mapping[str, Any]:
    is_over_all = ours["moe_config.moe_router_pre_softmax"]
    return {"norm_topk_prob": not is_over_all or bool(ours.get("moe_config.moe_router_norm_topk_prob"))}


CHOSEN = Field("moe_config.moe_router_topk", "num_experts_per_tok")
WIDTH = Field("moe_config.moe_ffn_hidden_size", "moe_intermediate_size")
SCALE = Field(
    "moe_config.moe_router_topk_scaling_factor", "routed_scaling_factor", to_theirs=lambda scale: scale or 1.0
)
MIXTRAL: tuple[AnyField, ...] = (
    CHOSEN,
    Field("moe_config.num_experts", "num_local_experts"),
    always("moe_config.moe_router_pre_softmax", False),
)
QWEN: tuple[AnyField, ...] = (
    CHOSEN,
    WIDTH,
    Field("moe_config.num_experts", "num_experts", also=("num_local_experts",)),
    Group(("norm_topk_prob",), _normalized, _normalized_out),
    Group(("num_hidden_layers", "decoder_sparse_step", "mlp_only_layers"), experts_in(_qwen_dense), _qwen_dense_out),
)
DEEPSEEK: tuple[AnyField, ...] = (
    CHOSEN,
    WIDTH,
    Field("moe_config.num_experts", "n_routed_experts"),
    SCALE,
    Group(
        ("num_hidden_layers", "mlp_layer_types", "first_k_dense_replace", "moe_layer_freq"),
        experts_in(_deepseek_dense),
        _deepseek_dense_out,
    ),
    shared("n_shared_experts"),
)
DEEPSEEK_V3: tuple[AnyField, ...] = (
    *DEEPSEEK,
    groups(of_group=2),
    Must("norm_topk_prob", (True, None)),
    Must("scoring_func", ("sigmoid", None)),
    Must("topk_method", ("noaux_tc", None)),
)
DEEPSEEK_V2: tuple[AnyField, ...] = (
    *DEEPSEEK,
    Must("norm_topk_prob", (False, None)),
    Must("scoring_func", ("softmax", None)),
    Must("topk_method", ("greedy", "group_limited_greedy", None)),
    groups(of_group=1, method="group_limited_greedy"),
    always("moe_config.moe_router_pre_softmax", True),
)
