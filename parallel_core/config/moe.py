"""Options of a mixture of experts, and of its figures in the log."""

from dataclasses import dataclass

from parallel_core.config.base import Config, concern, option, section


@dataclass(kw_only=True)
class MoEMonitorConfig(Config):
    """Options of the figures of experts that are logged and recorded."""

    moe_log_drop_rate: bool = option("--moe-log-drop-rate", False, of="run")
    """Log the share of routed tokens (each counted once for each of its experts) that each layer dropped."""
    moe_drop_rate_capacity_factor: float | None = option("--moe-drop-rate-capacity-factor", None, above=0, of="run")
    """Log also the share of routed tokens that would be dropped with this capacity factor."""
    moe_per_layer_logging: bool = option("--moe-per-layer-logging", False, of="run")
    """Log auxiliary losses of each layer, not only their mean."""
    save_token_distribution: bool = option("--save-token-distribution", False, of="run")
    """Record how many tokens each expert of a layer receives, in a file for each layer and step."""
    summary_dir: str | None = option("--summary-dir", None, of="run")
    """Folder of the files of --save-token-distribution; by default token_distribution in --save."""
    summary_collect_freq: int = option("--summary-collect-freq", 1, at_least=1, of="run")
    """Iterations from one recording of numbers of tokens to the next."""


BALANCING_LOSSES = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}
"""Kind of balancing that is a loss with a weight -> Megatron's name of the figure. Several such losses may be
combined."""
SPARSE_MIXER = "sparsemixer_topk"
BALANCING = (*BALANCING_LOSSES, "sinkhorn", SPARSE_MIXER, "none")
"""All kinds of --moe-router-load-balancing-type."""


@section
class MoEConfig(Config):
    """Options of experts, router and token dispatch; without `num_experts` the model is dense."""

    num_experts: int | None = option("--num-experts", None, at_least=1)
    """Number of experts of a layer; none: feed-forward blocks are dense."""
    num_zero_experts: int = option("--num-zero-experts", 0, at_least=0)
    """Number of a router's further choices, which give their input back, so that a token may pass through fewer experts
    than others (LongCat-Flash, 2025)."""
    moe_shortcut_connected: bool = option("--moe-shortcut-connected", False)
    """Layers of two halves, each with attention and a dense block, where the experts run beside the second half
    (LongCat-Flash)."""
    moe_layer_freq: int | list[int] = option("--moe-layer-freq", 1)
    """Layers from one with experts to the next, or a list by layer with 1 for experts and 0 for dense ones."""
    moe_ffn_hidden_size: int = option("--moe-ffn-hidden-size", None, at_least=1)
    """Width of one expert; `ffn_hidden_size` if not given."""
    moe_shared_expert_intermediate_size: int | None = option("--moe-shared-expert-intermediate-size", None, at_least=1)
    """Width of all shared experts together; none: no shared expert."""
    moe_shared_expert_overlap: bool = option("--moe-shared-expert-overlap", False, of="run")
    """Compute shared experts while tokens travel to the other experts, in the forward pass; results are the same."""
    overlap_moe_expert_parallel_comm: bool = option("--overlap-moe-expert-parallel-comm", False, of="run")
    """Compute another micro-batch while tokens travel: its forward beside the backward of an earlier one (combined
    1F1B); results are the same."""
    delay_wgrad_compute: bool = option("--delay-wgrad-compute", False, of="run")
    """Compute weight gradients while the tokens of their backward travel; results are the same."""
    moe_shared_expert_gate: bool = option("--moe-shared-expert-gate", False)
    """Weigh the shared experts' output by a learned gate."""
    moe_grouped_gemm: bool = option("--moe-grouped-gemm", False, of="run")
    """Compute a rank's experts in one grouped product."""
    enable_gmm_safe_tokens: bool = option("--enable-gmm-safe-tokens", False, of="run")
    """Give experts to which no token goes a row of zeros in the grouped product, dropped after it; results are the
    same."""
    moe_router_topk: int = option("--moe-router-topk", 2, at_least=1)
    """Number of experts each token goes to."""
    moe_router_load_balancing_type: str | list[str] = option("--moe-router-load-balancing-type", "aux_loss")
    """Kind of load balancing over experts, or several balancing losses; sparsemixer_topk samples experts (SparseMixer,
    Liu et al., 2023)."""
    moe_aux_loss_coeff: float | list[float] = option("--moe-aux-loss-coeff", 0.0, of="run")
    """Weight of the balancing loss, or of each of several."""
    moe_device_level_aux_loss_coeff: float = option("--moe-device-level-aux-loss-coeff", 0.0, at_least=0, of="run")
    """Weight of the loss that balances groups of experts (DeepSeek-V2, 2024, section 2.2.3)."""
    moe_comm_aux_loss_coeff: float = option("--moe-comm-aux-loss-coeff", 0.0, at_least=0, of="run")
    """Weight of the loss that balances the tokens that groups of experts receive (DeepSeek-V2, 2024, section 2.2.3)."""
    moe_z_loss_coeff: float | None = option("--moe-z-loss-coeff", None, at_least=0, of="run")
    """Weight of the z loss, which keeps router logits small (ST-MoE, 2022)."""
    moe_router_score_function: str = option(
        "--moe-router-score-function", "softmax", choices=("softmax", "sigmoid", "sqrtsoftplus")
    )
    """Function that turns router logits into scores."""
    moe_router_pre_softmax: bool = option("--moe-router-pre-softmax", False)
    """Score all experts before the best are chosen, not only the chosen ones."""
    hash_layers: int = option("--n-hash-layers", 0, at_least=0)
    """Number of the first layers whose experts are chosen by a table of tokens, not by scores (Roller et al., "Hash
    Layers", 2021; DeepSeek-V4, 2026)."""
    moe_router_norm_topk_prob: bool = option("--norm-topk-prob", False)
    """Divide the chosen experts' scores by their sum."""
    moe_router_force_load_balancing: bool = option("--fix-router", False, of="run")
    """Spread tokens evenly whatever the router says, to measure speed."""
    moe_enable_routing_replay: bool = option("--moe-enable-routing-replay", False, of="run")
    """Send tokens, in training, to the experts in a batch's entry routed_experts, which a generation recorded."""
    moe_router_topk_scaling_factor: float | None = option("--moe-router-topk-scaling-factor", None, above=0)
    """Factor of the chosen experts' scores."""
    moe_router_num_groups: int | None = option("--moe-router-num-groups", None, at_least=1)
    """Number of groups of experts for group-limited routing."""
    moe_router_group_topk: int | None = option("--moe-router-group-topk", None, at_least=1)
    """Number of groups that a token's experts may come from; none: all."""
    moe_router_group_score_topk: int | None = option("--moe-router-group-score-topk", None, at_least=1)
    """Number of a group's best experts whose summed scores are the group's score; none: k / --moe-router-group-topk.
    DeepSeek-V2's models have 1, DeepSeek-V3's 2."""
    moe_router_enable_expert_bias: bool = option("--moe-router-enable-expert-bias", False)
    """Balance by a bias on each expert's score that is moved after every step."""
    moe_router_bias_update_rate: float = option("--moe-router-bias-update-rate", 1e-3, at_least=0, of="run")
    """Amount by which the bias on an expert's score moves in a training step, up or down."""
    moe_router_dtype: str | None = option("--moe-router-dtype", None, choices=("fp32", "fp64"), of="run")
    """Type of the router's matrix product, whose scores are float32; if not given, that of the layers."""
    moe_input_jitter_eps: float | None = option("--moe-input-jitter-eps", None, at_least=0)
    """Largest deviation from 1 of the noise that the router's input is multiplied by; with sparsemixer_topk,
    half the distance from the best logit, as a share of it, within which experts are sampled."""
    moe_token_dispatcher_type: str = option(
        "--moe-token-dispatcher-type", "allgather", choices=("allgather", "alltoall"), of="run"
    )
    """How tokens reach their experts: every rank gets all tokens (allgather), or those for its experts (alltoall)."""
    moe_expert_capacity_factor: float | None = option("--moe-expert-capacity-factor", None, above=0, of="run")
    """Capacity of an expert in tokens, as a multiple of an even share; none: no limit."""
    moe_pad_expert_input_to_capacity: bool = option("--moe-pad-expert-input-to-capacity", False, of="run")
    """Fill every expert's input up to its capacity."""
    hot_expert_num: int = option("--hot-expert-num", 0, at_least=0, of="run")
    """Number of the experts with most tokens of which every expert-parallel rank has a copy."""
    cold_token_percent: float = option("--cold-token-percent", 1.0, above=0, at_most=1, of="run")
    """Capacity of the cold experts, as a share of the hot ones'."""
    hot_expert_update_step: int = option("--hot-expert-update-step", 10000, at_least=1, of="run")
    """Iterations from one choice of the hot experts to the next; up to the first, also after iterations 1, 2, 4, 8,
    ..."""
    moe_token_drop_policy: str = option("--moe-token-drop-policy", "probs", choices=("probs", "position"), of="run")
    """The tokens that an overfull expert drops: the least probable (probs) or the last (position)."""

    monitors: MoEMonitorConfig = concern(MoEMonitorConfig)
    """Options of the figures of experts that are logged and recorded."""

    @property
    def scores_all_experts(self) -> bool:
        """Whether the options score all experts before the best are chosen (sigmoid, sqrtsoftplus or
        --moe-router-pre-softmax). sinkhorn and sparsemixer_topk, which score in their own way, are not regarded."""
        return self.moe_router_score_function != "softmax" or self.moe_router_pre_softmax

    @property
    def has_expert_bias(self) -> bool:
        """Whether --moe-router-enable-expert-bias is given and all experts are scored (`scores_all_experts`), as a bias
        on the scores needs. Routers that read no bias (sinkhorn, sparsemixer_topk, --n-hash-layers) are not
        regarded."""
        return self.moe_router_enable_expert_bias and self.scores_all_experts

    @property
    def num_choices(self) -> int:
        """The number of choices of a router: experts, and choices that compute nothing and give the token back."""
        return (self.num_experts or 0) + self.num_zero_experts

    @property
    def enable_cold_hot_expert(self) -> bool:
        """Whether --hot-expert-num is above 0; the name is MindFormers'."""
        return self.hot_expert_num > 0

    @property
    def expert_num(self) -> int:
        """The number of experts, 1 for a dense model; the name is MindFormers'."""
        return self.num_experts or 1

    @property
    def capacity_factor(self) -> float | None:
        """The capacity factor of experts, None without one; the name is MindFormers'."""
        return self.moe_expert_capacity_factor

    @property
    def moe_module_name(self) -> str:
        """The path of the layers within a `GPTModel`; the name is MindFormers'."""
        return "language_model.decoder.layers"

    def derive(self) -> None:
        if self.num_experts == 1:
            self.num_experts = None

    @property
    def balancing(self) -> tuple[str, ...]:
        """The kinds of load balancing: one kind, or several losses at once."""
        kinds = self.moe_router_load_balancing_type
        return tuple(kinds) if isinstance(kinds, list) else (kinds,)

    @property
    def own_choice(self) -> str | None:
        """The kind of balancing that chooses and weighs experts in its own way (sinkhorn, sparsemixer_topk); None:
        there is none."""
        return next((kind for kind in self.balancing if kind in ("sinkhorn", SPARSE_MIXER)), None)

    @property
    def samples(self) -> bool:
        """Whether the kind of load balancing is sparsemixer_topk, whose routers sample experts in training."""
        return SPARSE_MIXER in self.balancing

    @property
    def sampled_within(self) -> float:
        """The number j by which sparsemixer_topk leaves out experts whose logit lies more than 2 j below the best that
        is not taken yet, relative to the larger magnitude of the two: --moe-input-jitter-eps, or 0.01 where that is 0
        or not given. 0.01 also with other kinds of load balancing."""
        return (self.samples and self.moe_input_jitter_eps) or 0.01

    @property
    def balancing_weights(self) -> tuple[float, ...]:
        """The weights of --moe-aux-loss-coeff, in the order of `balancing`."""
        weights = self.moe_aux_loss_coeff
        return tuple(weights) if isinstance(weights, list) else (weights,)

    @property
    def balancing_losses(self) -> dict[str, float]:
        """Kind -> weight of the balancing losses whose weight is not 0. Raises ValueError if the numbers of kinds and
        of weights differ."""
        pairs = zip(self.balancing, self.balancing_weights, strict=True)
        return {kind: weight for kind, weight in pairs if kind in BALANCING_LOSSES and weight}

    def has_experts(self, layer: int) -> bool:
        """Whether --num-experts and --moe-layer-freq give experts to the layer of this global number, from 0. With
        --num-experts, raises IndexError beyond the end of a list."""
        if self.num_experts is None:
            return False
        pattern = self.moe_layer_freq
        return bool(pattern[layer]) if isinstance(pattern, list) else layer % pattern == 0

    def kinds_of_layers(self, layers: int) -> set[bool]:
        """The values that `has_experts` takes over the first `layers` layers: {True}, {False} or both. layers: 1 at
        least. With experts, every entry of a list of --moe-layer-freq counts, whatever `layers` is, and an empty list
        gives an empty set."""
        if self.num_experts is None:
            return {False}
        pattern = self.moe_layer_freq
        if isinstance(pattern, list):
            return set(map(bool, pattern))
        return {True} if pattern == 1 or layers == 1 else {True, False}
