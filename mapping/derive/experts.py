"""Config fields of mixtures of experts that are derived from arguments: Megatron's, MindSpeed-LLM's, DeepSpeed's and
Pai-Megatron-Patch's names for the same routers. `mapping.derive.fields` says how such functions read arguments."""

from collections.abc import Callable
from typing import Any

from mapping.derive.hybrid import hybrid_pattern, layers
from mapping.flags.notations import has_spec, layer_frequency, parts
from mapping.flags.with_option.moe import ROUTERS, SOFTMAX_FIRST
from parallel_core.config.hybrid import EXPERTS


def moe_layer_freq(args: Any) -> int | list[int] | None:
    pattern = hybrid_pattern(args)
    if pattern is not None and EXPERTS in pattern:
        return [int(letter == EXPERTS) for letter in pattern]
    first, every, number = args.first_k_dense_replace, args.moe_layer_freq, layers(args)
    every = layer_frequency(every) if isinstance(every, str) else every
    every = abs(every) if isinstance(every, int) else every
    if first is None or first <= 0 or not number or not isinstance(every, int) or every == 0:
        return every
    return [int(layer >= first and layer % every == 0) for layer in range(number)]


def shared_expert_size(args: Any) -> Any:
    width = args.moe_ffn_hidden_size or args.moe_intermediate_size or args.ffn_hidden_size
    if args.n_shared_experts and width:
        return args.n_shared_experts * width
    return args.shared_moe_ffn_hidden_size or args.moe_shared_expert_intermediate_size


def shared_expert_gate(args: Any) -> bool:
    """Whether shared experts have a gate: by --moe-shared-expert-gate or --shared-expert-gate, or with
    Pai-Megatron-Patch's --enable-shared-expert, whose shared expert has one."""
    return bool(args.moe_shared_expert_gate or args.shared_expert_gate or args.enable_shared_expert)


def _kinds_of_balancing(args: Any) -> list[str]:
    return parts(args.moe_router_load_balancing_type)


def load_balancing(args: Any) -> Any:
    """The kind of load balancing, or the list of kinds, in Megatron's terms: MindSpeed-LLM's names for whole routers
    and aux_loss become aux_loss, with --seq-aux seq_aux_loss; other kinds stay."""
    loss = "seq_aux_loss" if args.seq_aux else "aux_loss"
    kinds = [loss if kind in ROUTERS else kind for kind in _kinds_of_balancing(args)]
    return kinds[0] if len(kinds) == 1 else kinds


def softmax_comes_first(args: Any) -> bool:
    named = any(kind in SOFTMAX_FIRST for kind in _kinds_of_balancing(args))
    return bool(args.moe_router_pre_softmax or named or _is_deepspeed(args))


def _is_deepspeed(args: Any) -> Any:
    """Whether experts are DeepSpeed's (Rajbhandari et al., 2022): softmax before the choice, and always a capacity."""
    return args.moe_model_type == "deepspeed_moe"


def capacity_factor(args: Any) -> Any:
    return args.moe_train_capacity_factor if _is_deepspeed(args) else args.moe_expert_capacity_factor


def router_groups(args: Any) -> int | None:
    """The number of groups of experts, by flag; else, with a flag that limits or balances groups, the number of
    expert-parallel ranks if there are several, as in MindSpeed-LLM; else None."""
    given = args.moe_router_num_groups or args.n_group
    limited = args.moe_router_group_topk or args.topk_group
    limited = limited or args.moe_device_level_aux_loss_coeff or args.moe_comm_aux_loss_coeff
    ranks = args.expert_model_parallel_size or 1
    return given or (ranks if limited and ranks > 1 else None)


def group_score(args: Any) -> int | None:
    """The number of experts whose scores make up their group's score: by flag, else 1 for MindSpeed-LLM's
    group_limited_greedy, DeepSeek-V2's router, else None."""
    given, kinds = args.moe_router_group_score_topk, _kinds_of_balancing(args)
    return 1 if given is None and "group_limited_greedy" in kinds else given


OF_EXPERTS: dict[str, Callable[[Any], Any]] = {
    "moe_layer_freq": moe_layer_freq,
    "moe_shared_expert_intermediate_size": shared_expert_size,
    "moe_shared_expert_gate": shared_expert_gate,
    "moe_shortcut_connected": lambda args: args.moe_shortcut_connected or has_spec(args, "longcat_spec"),
    "moe_router_load_balancing_type": load_balancing,
    "moe_router_pre_softmax": softmax_comes_first,
    "moe_router_enable_expert_bias": lambda args: (
        args.moe_router_enable_expert_bias or "noaux_tc" in _kinds_of_balancing(args)
    ),
    "moe_router_num_groups": router_groups,
    "moe_router_group_score_topk": group_score,
    "moe_router_dtype": lambda args: (
        "fp32" if args.router_gating_in_fp32 or args.topk_softmax_in_fp32 else args.moe_router_dtype
    ),
    "moe_expert_capacity_factor": capacity_factor,
    "moe_token_drop_policy": lambda args: "position" if _is_deepspeed(args) else args.moe_token_drop_policy,
    "moe_router_norm_topk_prob": lambda args: (
        args.norm_topk_prob or (_is_deepspeed(args) and args.moe_router_topk != 1)
    ),
    "moe_input_jitter_eps": lambda args: None if args.input_jitter is False else args.moe_input_jitter_eps,
    "moe_token_dispatcher_type": lambda args: {"alltoall_seq": "alltoall", "flex": "alltoall"}.get(
        args.moe_token_dispatcher_type, args.moe_token_dispatcher_type
    ),
}
"""Name of a field -> the function that derives it from the arguments."""
