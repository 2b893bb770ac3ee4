"""Rules of mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.config.moe import BALANCING, BALANCING_LOSSES, SPARSE_MIXER
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.sizes import expert_copies_are_whole


def experts_divide(config: Sections) -> Iterator[Finding]:
    experts, size = config.moe_config.num_experts, config.parallel_config.expert_model_parallel_size
    if experts is None:
        if size > 1:
            yield Finding("--expert-model-parallel-size", size, "needs --num-experts", "add it or leave this out")
    elif experts % size:
        yield Finding(
            "--num-experts", experts, f"must be a multiple of --expert-model-parallel-size {size}", "change one of them"
        )


def expert_ranks_divide(config: Sections) -> Iterator[Finding]:
    if config.moe_config.num_experts is not None:
        yield from expert_copies_are_whole(config.parallel_config)


def dense_widths_divide(config: Sections) -> Iterator[Finding]:
    """Of the blocks that all tokens pass through: of dense layers, and shared experts."""
    size, kinds = config.parallel_config.tensor_model_parallel_size, _kinds_of_layers(config)
    shared = config.moe_config.moe_shared_expert_intermediate_size
    for flag, width, is_there in (
        ("--ffn-hidden-size", config.model_config.ffn_hidden_size, False in kinds),
        ("--moe-shared-expert-intermediate-size", shared or 0, True in kinds),
    ):
        if is_there and width % size:
            rule = f"must be a multiple of --tensor-model-parallel-size {size}"
            yield Finding(flag, width, rule, "change one of them")


def expert_width_divides(config: Sections) -> Iterator[Finding]:
    width, size = config.moe_config.moe_ffn_hidden_size, config.parallel_config.expert_tensor_parallel_size
    if True in _kinds_of_layers(config) and width % size:
        rule = f"must be a multiple of --expert-tensor-parallel-size {size}"
        yield Finding("--moe-ffn-hidden-size", width, rule, "change one of them")


def _kinds_of_layers(config: Sections) -> set[bool]:
    """Whether layers have experts; nothing is known where the pattern does not fit."""
    if any(layer_pattern_fits(config)):
        return set()
    return config.moe_config.kinds_of_layers(config.model_config.num_layers)


def router_chooses_among_experts(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    experts, groups, chosen = moe.num_experts, moe.moe_router_num_groups, moe.moe_router_group_topk
    if experts is None:
        return
    if moe.moe_router_topk > experts:
        yield Finding("--moe-router-topk", moe.moe_router_topk, f"must not exceed --num-experts {experts}", "lower it")
    if groups is not None and experts % groups:
        yield Finding("--moe-router-num-groups", groups, f"must divide --num-experts {experts}", "change it")
    if groups is not None and chosen is not None and chosen > groups:
        yield Finding(
            "--moe-router-group-topk", chosen, f"must not exceed --moe-router-num-groups {groups}", "lower it"
        )
    in_chosen = experts // groups * chosen if groups and chosen and not experts % groups else experts
    if in_chosen < moe.moe_router_topk <= experts and (chosen or 0) <= (groups or 0):
        rule = f"must not exceed the experts of --moe-router-group-topk {chosen} groups, {in_chosen}"
        yield Finding("--moe-router-topk", moe.moe_router_topk, rule, "lower it")
    judges, of_group = moe.moe_router_group_score_topk, experts // groups if groups else experts
    if judges is not None and judges > of_group:
        yield Finding(
            "--moe-router-group-score-topk", judges, f"must not exceed a group's {of_group} experts", "lower it"
        )
    if judges is None and chosen is not None and chosen > moe.moe_router_topk:
        rule = f"must be at least --moe-router-group-topk {chosen}: a group is as good as its best k / {chosen} experts"
        yield Finding("--moe-router-topk", moe.moe_router_topk, rule, "raise it")
    if chosen is not None and groups is None:
        yield Finding("--moe-router-group-topk", chosen, "needs --moe-router-num-groups", "add it")


def balancing_is_known(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    kinds, weights = moe.balancing, moe.balancing_weights
    flag, given = "--moe-router-load-balancing-type", " ".join(map(str, kinds))
    if any(kind not in BALANCING for kind in kinds):
        yield Finding(flag, given, f"must be of {', '.join(BALANCING)}", "change it")
    elif len(kinds) > 1 and not set(kinds) <= set(BALANCING_LOSSES):
        yield Finding(flag, given, f"only {', '.join(BALANCING_LOSSES)} may be combined", "leave one out")
    elif len(kinds) != len(set(kinds)):
        yield Finding(flag, given, "names a loss twice", "leave one out")
    elif len(weights) != len(kinds):
        rule = f"must have one weight for each --moe-router-load-balancing-type, {len(kinds)} in all"
        yield Finding("--moe-aux-loss-coeff", " ".join(f"{weight:g}" for weight in weights), rule, "add or remove some")
    if any(weight < 0 for weight in weights):
        yield Finding(
            "--moe-aux-loss-coeff", " ".join(f"{weight:g}" for weight in weights), "must be at least 0", "change it"
        )


def balanced_otherwise(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is not None and "sinkhorn" in moe.balancing and any(moe.balancing_weights):
        rule = "does not go with --moe-router-load-balancing-type sinkhorn, which balances without a loss"
        yield Finding("--moe-aux-loss-coeff", moe.moe_aux_loss_coeff, rule, "leave it out")


def router_has_a_device_for_its_type(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    on_ascend = config.parallel_config.device_target == "Ascend"
    if moe.num_experts is not None and moe.moe_router_dtype == "fp64" and on_ascend:
        yield Finding("--moe-router-dtype", "fp64", "an Ascend has no products of float64", "use fp32")


def balanced_groups_exist(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is None:
        return
    for flag, weight in (
        ("--moe-device-level-aux-loss-coeff", moe.moe_device_level_aux_loss_coeff),
        ("--moe-comm-aux-loss-coeff", moe.moe_comm_aux_loss_coeff),
    ):
        if weight and moe.moe_router_num_groups is None:
            yield Finding(flag, weight, "balances groups of experts, so it needs --moe-router-num-groups", "add it")
        if weight and not set(moe.balancing) & {"aux_loss", "seq_aux_loss"}:
            yield Finding(
                flag,
                weight,
                f"does not go with --moe-router-load-balancing-type {' '.join(moe.balancing)}",
                "use aux_loss or seq_aux_loss",
            )


def sampling_takes_two(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is None or SPARSE_MIXER not in moe.balancing:
        return
    if moe.moe_router_topk != 2:
        yield Finding(
            "--moe-router-load-balancing-type",
            SPARSE_MIXER,
            f"needs --moe-router-topk 2, not {moe.moe_router_topk}",
            "change one of them",
        )


def one_expert_learns(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    softmax_of_one = moe.moe_router_topk == 1 and moe.moe_router_score_function == "softmax"
    if moe.num_experts is None or "sinkhorn" in moe.balancing:
        return
    if softmax_of_one and not moe.moe_router_pre_softmax:
        yield Finding(
            "--moe-router-topk",
            1,
            "the softmax of one score is 1 and teaches the router nothing",
            "add --moe-router-pre-softmax",
        )


def expert_bias_has_sigmoid(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if (
        moe.num_experts is not None
        and moe.moe_router_enable_expert_bias
        and (moe.moe_router_score_function != "sigmoid")
    ):
        yield Finding("--moe-router-enable-expert-bias", None, "needs --moe-router-score-function sigmoid", "add it")


def capacity_is_given(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is None:
        return
    if moe.moe_pad_expert_input_to_capacity and moe.moe_expert_capacity_factor is None:
        yield Finding("--moe-pad-expert-input-to-capacity", None, "needs --moe-expert-capacity-factor", "add it")
    if moe.moe_expert_capacity_factor is not None and "sinkhorn" in moe.balancing:
        yield Finding(
            "--moe-expert-capacity-factor",
            moe.moe_expert_capacity_factor,
            "does not go with --moe-router-load-balancing-type sinkhorn",
            "use aux_loss or none",
        )


def drop_rates_have_a_capacity(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    monitors = moe.monitors
    if moe.num_experts is None or not monitors.moe_log_drop_rate:
        return
    if moe.moe_expert_capacity_factor is None and monitors.moe_drop_rate_capacity_factor is None:
        rule = "needs --moe-expert-capacity-factor, or --moe-drop-rate-capacity-factor to count for another"
        yield Finding("--moe-log-drop-rate", None, rule, "add one of them")


def layer_pattern_fits(config: Sections) -> Iterator[Finding]:
    pattern, layers = config.moe_config.moe_layer_freq, config.model_config.num_layers
    if config.moe_config.num_experts is None:
        return
    if isinstance(pattern, list) and len(pattern) != layers:
        yield Finding(
            "--moe-layer-freq", pattern, f"has {len(pattern)} entries, must have --num-layers {layers}", "change it"
        )
    if isinstance(pattern, list) and any(entry not in (0, 1) for entry in pattern):
        yield Finding("--moe-layer-freq", pattern, "entries must be 0 (dense) or 1 (experts)", "change it")
    if isinstance(pattern, list) and not any(pattern):
        rule = "leaves no layer with experts, of which --num-experts asks for some"
        yield Finding("--moe-layer-freq", pattern, rule, "change one of them")
    if isinstance(pattern, int) and pattern < 1:
        yield Finding("--moe-layer-freq", pattern, "must be at least 1", "change it")


def hot_experts_are_experts(config: Sections) -> Iterator[Finding]:
    moe, hot = config.moe_config, config.moe_config.hot_expert_num
    if hot and moe.num_experts is None:
        yield Finding("--hot-expert-num", hot, "needs --num-experts", "add it")
    elif hot > (moe.num_experts or 0):
        yield Finding("--hot-expert-num", hot, f"must not exceed --num-experts {moe.num_experts}", "lower it")


def copies_give_their_gradients_at_the_end(config: Sections) -> Iterator[Finding]:
    """Copies' gradients join the owner's after the last backward, when sums that overlap it have gone already."""
    hot, gradient = config.moe_config.hot_expert_num, config.training_config.gradient
    if hot and (gradient.overlap_grad_reduce or gradient.zero_stage >= 2):
        with_this = "--overlap-grad-reduce" if gradient.overlap_grad_reduce else f"--zero-stage {gradient.zero_stage}"
        yield Finding("--hot-expert-num", hot, f"does not go with {with_this}", "leave one of them out")


def cold_capacity_is_given(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.hot_expert_num and moe.cold_token_percent < 1 and moe.moe_expert_capacity_factor is None:
        rule = "is a share of the capacity, so it needs --moe-expert-capacity-factor"
        yield Finding("--cold-token-percent", moe.cold_token_percent, rule, "add it")


RULES = (
    experts_divide,
    expert_ranks_divide,
    dense_widths_divide,
    expert_width_divides,
    router_chooses_among_experts,
    balancing_is_known,
    balanced_otherwise,
    router_has_a_device_for_its_type,
    balanced_groups_exist,
    sampling_takes_two,
    one_expert_learns,
    expert_bias_has_sigmoid,
    capacity_is_given,
    drop_rates_have_a_capacity,
    layer_pattern_fits,
    hot_experts_are_experts,
    copies_give_their_gradients_at_the_end,
    cold_capacity_is_given,
)
