"""Rules of mixtures of experts, and of the widths of dense feed-forward blocks."""

from collections.abc import Iterator

from parallel_core.config.moe import BALANCING, BALANCING_LOSSES, SPARSE_MIXER
from parallel_core.config.notations import wrong_pattern
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.sizes import expert_copies_are_whole


def experts_divide(config: Sections) -> Iterator[Finding]:
    moe, size = config.moe_config, config.parallel_config.expert_model_parallel_size
    if moe.num_experts is None:
        if size > 1:
            fix = "add it or leave this out"
            yield config.parallel_config.needs("expert_model_parallel_size", "--num-experts", fix)
    elif moe.num_experts % size:
        yield moe.breaks("num_experts", f"must be a multiple of --expert-model-parallel-size {size}")


def expert_ranks_divide(config: Sections) -> Iterator[Finding]:
    if config.moe_config.num_experts is not None:
        yield from expert_copies_are_whole(config.parallel_config)


def dense_widths_divide(config: Sections) -> Iterator[Finding]:
    """Check that tensor-parallel ranks divide the widths of dense feed-forward blocks and of shared experts, unless
    --unaligned-linear allows any width."""
    model, moe, size = config.model_config, config.moe_config, config.parallel_config.tensor_model_parallel_size
    if config.parallel_config.unaligned_linear:
        return
    kinds, rule = _kinds_of_layers(config), f"must be a multiple of --tensor-model-parallel-size {size}"
    if (False in kinds or moe.moe_shortcut_connected) and model.ffn_hidden_size % size:
        yield model.breaks("ffn_hidden_size", rule)
    if True in kinds and (moe.moe_shared_expert_intermediate_size or 0) % size:
        yield moe.breaks("moe_shared_expert_intermediate_size", rule)


def expert_width_divides(config: Sections) -> Iterator[Finding]:
    moe, size = config.moe_config, config.parallel_config.expert_tensor_parallel_size
    if config.parallel_config.unaligned_linear:
        return
    if True in _kinds_of_layers(config) and moe.moe_ffn_hidden_size % size:
        yield moe.breaks("moe_ffn_hidden_size", f"must be a multiple of --expert-tensor-parallel-size {size}")


def _kinds_of_layers(config: Sections) -> set[bool]:
    """The values of `MoEConfig.has_experts` over the layers; empty where the pattern of layers does not fit."""
    fits = not any(layer_pattern_fits(config))
    return config.moe_config.kinds_of_layers(config.model_config.num_layers) if fits else set()


def router_chooses_among_experts(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    experts, groups, chosen = moe.num_experts, moe.moe_router_num_groups, moe.moe_router_group_topk
    if experts is None:
        return
    if moe.moe_router_topk > experts:
        yield moe.breaks("moe_router_topk", f"must not exceed --num-experts {experts}", "lower it")
    if groups is not None and experts % groups:
        yield moe.breaks("moe_router_num_groups", f"must divide --num-experts {experts}", "change it")
    if groups is not None and chosen is not None and chosen > groups:
        yield moe.breaks("moe_router_group_topk", f"must not exceed --moe-router-num-groups {groups}", "lower it")
    in_chosen = experts // groups * chosen if groups and chosen and not experts % groups else experts
    if in_chosen < moe.moe_router_topk <= experts and (chosen or 0) <= (groups or 0):
        rule = f"must not exceed the experts of --moe-router-group-topk {chosen} groups, {in_chosen}"
        yield moe.breaks("moe_router_topk", rule, "lower it")
    judges, of_group = moe.moe_router_group_score_topk, experts // groups if groups else experts
    if judges is not None and judges > of_group:
        yield moe.breaks("moe_router_group_score_topk", f"must not exceed a group's {of_group} experts", "lower it")
    if judges is None and chosen is not None and chosen > moe.moe_router_topk:
        rule = f"must be at least --moe-router-group-topk {chosen}: a group is as good as its best k / {chosen} experts"
        yield moe.breaks("moe_router_topk", rule, "raise it")
    if chosen is not None and groups is None:
        yield moe.needs("moe_router_group_topk", "--moe-router-num-groups")


def balancing_is_known(config: Sections) -> Iterator[Finding]:
    moe, name = config.moe_config, "moe_router_load_balancing_type"
    kinds, weights = moe.balancing, moe.balancing_weights
    given, given_weights = " ".join(map(str, kinds)), " ".join(f"{weight:g}" for weight in weights)
    if any(kind not in BALANCING for kind in kinds):
        yield moe.breaks(name, f"must be of {', '.join(BALANCING)}", "change it", given)
    elif len(kinds) > 1 and not set(kinds) <= set(BALANCING_LOSSES):
        yield moe.breaks(name, f"only {', '.join(BALANCING_LOSSES)} may be combined", "leave one out", given)
    elif len(kinds) != len(set(kinds)):
        yield moe.breaks(name, "names a loss twice", "leave one out", given)
    elif len(weights) != len(kinds):
        rule = f"must have one weight for each --moe-router-load-balancing-type, {len(kinds)} in all"
        yield moe.breaks("moe_aux_loss_coeff", rule, "add or remove some", given_weights)
    if any(weight < 0 for weight in weights):
        yield moe.breaks("moe_aux_loss_coeff", "must be at least 0", "change it", given_weights)


def balanced_otherwise(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is not None and "sinkhorn" in moe.balancing and any(moe.balancing_weights):
        other = "--moe-router-load-balancing-type sinkhorn, which balances without a loss"
        yield moe.clashes("moe_aux_loss_coeff", other, "leave it out")


def router_has_a_device_for_its_type(config: Sections) -> Iterator[Finding]:
    moe, on_ascend = config.moe_config, config.parallel_config.device_target == "Ascend"
    if moe.num_experts is not None and moe.moe_router_dtype == "fp64" and on_ascend:
        yield moe.breaks("moe_router_dtype", "an Ascend has no products of float64", "use fp32")


def balanced_groups_exist(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    for name in ("moe_device_level_aux_loss_coeff", "moe_comm_aux_loss_coeff"):
        if moe.num_experts is None or not getattr(moe, name):
            continue
        if moe.moe_router_num_groups is None:
            yield moe.breaks(name, "balances groups of experts, so it needs --moe-router-num-groups", "add it")
        if not set(moe.balancing) & {"aux_loss", "seq_aux_loss"}:
            other = f"--moe-router-load-balancing-type {' '.join(moe.balancing)}"
            yield moe.clashes(name, other, "use aux_loss or seq_aux_loss")


def sampling_takes_two(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is not None and SPARSE_MIXER in moe.balancing and moe.moe_router_topk != 2:
        rule = f"needs --moe-router-topk 2, not {moe.moe_router_topk}"
        yield moe.breaks("moe_router_load_balancing_type", rule, value=SPARSE_MIXER)


def one_expert_learns(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    softmax_of_one = moe.moe_router_topk == 1 and moe.moe_router_score_function == "softmax"
    if moe.num_experts is None or "sinkhorn" in moe.balancing:
        return
    if softmax_of_one and not moe.moe_router_pre_softmax:
        rule = "the softmax of one score is 1 and teaches the router nothing"
        yield moe.breaks("moe_router_topk", rule, "add --moe-router-pre-softmax")


def hash_layers_fit(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if not moe.hash_layers:
        return
    if moe.num_experts is None:
        yield moe.needs("hash_layers", "--num-experts")
        return
    for name in ("num_zero_experts", "moe_shortcut_connected", "hot_expert_num"):
        if getattr(moe, name):
            yield moe.clashes(name, f"--n-hash-layers {moe.hash_layers}")
    if moe.own_choice:
        kinds = " ".join(moe.balancing)
        yield moe.clashes("hash_layers", f"--moe-router-load-balancing-type {kinds}, which chooses in its own way")
    if not moe.scores_all_experts:
        rule = (
            "--moe-router-score-function sigmoid or sqrtsoftplus, or --moe-router-pre-softmax: experts are chosen first"
        )
        yield moe.needs("hash_layers", rule, "add one of them")


def choices_can_be_replayed(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if not moe.moe_enable_routing_replay:
        return
    if moe.num_experts is None:
        yield moe.needs("moe_enable_routing_replay", "--num-experts")
    elif moe.own_choice:
        other = "sinkhorn and sparsemixer_topk, which weigh experts as they chose them"
        yield moe.clashes("moe_enable_routing_replay", other, "use another router")
    elif moe.hash_layers:
        yield moe.clashes("moe_enable_routing_replay", "--n-hash-layers, whose table chooses")


def zero_experts_fit(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if not moe.num_zero_experts:
        return
    if moe.num_experts is None:
        yield moe.needs("num_zero_experts", "--num-experts")
    for name in ("hot_expert_num", "moe_expert_capacity_factor", "moe_router_group_topk"):
        if getattr(moe, name):
            yield moe.clashes(name, f"--num-zero-experts {moe.num_zero_experts}")
    if moe.own_choice:
        yield moe.breaks("num_zero_experts", "is not known to sinkhorn and sparsemixer_topk", "use another router")


def shortcuts_lead_past_dense_blocks(config: Sections) -> Iterator[Finding]:
    moe, model = config.moe_config, config.model_config
    if not moe.moe_shortcut_connected:
        return
    if moe.num_experts is None:
        yield moe.needs("moe_shortcut_connected", "--num-experts")
    elif _kinds_of_layers(config) == {True, False}:
        yield moe.breaks("moe_shortcut_connected", "needs experts in every layer", "leave --moe-layer-freq out")
    if model.use_sandwich_norm or model.apply_residual_connection_post_norm:
        other = "--use-sandwich-norm" if model.use_sandwich_norm else "--apply-residual-connection-post-layernorm"
        yield moe.clashes("moe_shortcut_connected", other)
    others = {
        "sparse attention": model.sparse_attention.enabled,
        "--qk-clip": model.qk_clip.enabled,
        "--log-max-attention-logit": model.qk_clip.log_largest,
        "--moe-enable-routing-replay": moe.moe_enable_routing_replay,
    }
    for other in (name for name, given in others.items() if given):
        yield moe.clashes("moe_shortcut_connected", other)
    if model.multi_token_prediction.depths:
        yield moe.clashes("moe_shortcut_connected", f"--mtp-num-layers {model.multi_token_prediction.depths}")


def capacity_is_given(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.num_experts is None:
        return
    if moe.moe_pad_expert_input_to_capacity and moe.moe_expert_capacity_factor is None:
        yield moe.needs("moe_pad_expert_input_to_capacity", "--moe-expert-capacity-factor")
    if moe.moe_expert_capacity_factor is not None and "sinkhorn" in moe.balancing:
        other = "--moe-router-load-balancing-type sinkhorn"
        yield moe.clashes("moe_expert_capacity_factor", other, "use aux_loss or none")


def drop_rates_have_a_capacity(config: Sections) -> Iterator[Finding]:
    moe, monitors = config.moe_config, config.moe_config.monitors
    if moe.num_experts is None or not monitors.moe_log_drop_rate:
        return
    if moe.moe_expert_capacity_factor is None and monitors.moe_drop_rate_capacity_factor is None:
        other = "--moe-expert-capacity-factor, or --moe-drop-rate-capacity-factor to count for another"
        yield monitors.needs("moe_log_drop_rate", other, "add one of them")


def layer_pattern_fits(config: Sections) -> Iterator[Finding]:
    moe, pattern = config.moe_config, config.moe_config.moe_layer_freq
    if moe.num_experts is None:
        return
    for rule in wrong_pattern(pattern, config.model_config.num_layers, "dense", "experts"):
        yield moe.breaks("moe_layer_freq", rule, "change it")
    if isinstance(pattern, list) and not any(pattern):
        yield moe.breaks("moe_layer_freq", "leaves no layer with experts, of which --num-experts asks for some")


def hot_experts_are_experts(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.hot_expert_num and moe.num_experts is None:
        yield moe.needs("hot_expert_num", "--num-experts")
    elif moe.hot_expert_num > (moe.num_experts or 0):
        yield moe.breaks("hot_expert_num", f"must not exceed --num-experts {moe.num_experts}", "lower it")


def copies_have_no_delayed_scales(config: Sections) -> Iterator[Finding]:
    """Check that hot experts (--hot-expert-num) go without delayed scales (--fp8-recipe), which are an expert's
    own."""
    recipe, hot = config.model_config.float8.recipe, config.moe_config.hot_expert_num
    if recipe is not None and recipe.is_delayed and hot:
        yield config.model_config.float8.clashes("fp8_recipe", f"--hot-expert-num {hot}", "use another recipe")


def copies_give_their_gradients_at_the_end(config: Sections) -> Iterator[Finding]:
    """Check that hot experts (--hot-expert-num) go without --overlap-grad-reduce and without ZeRO stages 2 and 3: their
    copies' gradients join the owner's after the last backward only."""
    gradient = config.training_config.gradient
    if config.moe_config.hot_expert_num and (gradient.overlap_grad_reduce or gradient.zero_stage >= 2):
        other = "--overlap-grad-reduce" if gradient.overlap_grad_reduce else f"--zero-stage {gradient.zero_stage}"
        yield config.moe_config.clashes("hot_expert_num", other)


def cold_capacity_is_given(config: Sections) -> Iterator[Finding]:
    moe = config.moe_config
    if moe.hot_expert_num and moe.cold_token_percent < 1 and moe.moe_expert_capacity_factor is None:
        rule = "is a share of the capacity, so it needs --moe-expert-capacity-factor"
        yield moe.breaks("cold_token_percent", rule, "add it")
