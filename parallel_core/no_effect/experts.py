"""Conditions under which options of mixtures of experts have no effect, and the reasons."""

from parallel_core.config.all import AllConfig
from parallel_core.config.moe import BALANCING_LOSSES, MoEConfig, MoEMonitorConfig
from parallel_core.no_effect.row import Idle, all_of, below, needs, unless, where
from parallel_core.schedules.generators import PAIRED


def _routes_in_its_own_way(config: AllConfig) -> bool:
    return config.moe_config.own_choice is not None


def _scores_sum_to_one(config: AllConfig) -> bool:
    """Whether --moe-router-norm-topk-prob changes nothing: several experts scored alone are divided by their sum in any
    case, and so are those of a softmax over the chosen ones; the score of one is never."""
    moe = config.moe_config
    return moe.moe_router_score_function != "softmax" or not moe.moe_router_pre_softmax or moe.moe_router_topk == 1


_OF_EXPERTS = f"{below(MoEConfig, 'num_experts', 'monitors')} {below(MoEMonitorConfig)} expert_tensor_parallel_size"
_HOT_NEED = "needs --expert-model-parallel-size 2 or more, or --cold-token-percent below 1"
_OWN_WAY = "--moe-router-load-balancing-type sinkhorn and sparsemixer_topk choose and weigh experts in their own way"
_TO_ALL = "needs --moe-token-dispatcher-type alltoall: an all-gather sends every token to every rank"
_SUM_TO_ONE = "scores of the chosen experts sum to one already, unless several come out of --moe-router-pre-softmax"
_NO_SCORES = (
    "the bias is added to scores of all experts, which there are with --moe-router-score-function sigmoid or "
    "sqrtsoftplus, or --moe-router-pre-softmax"
)
_ALONE = "--moe-router-score-function sigmoid and sqrtsoftplus score each expert alone"
_KEEPS_TOKENS = all_of(where("expert_model_parallel_size", 1), where("expert_tensor_parallel_size", 1))
_COPIES_NONE = all_of(where("expert_model_parallel_size", 1), where("cold_token_percent", 1))
"""--hot-expert-num does nothing: a hot expert is on the only rank anyway, and takes as many tokens as a cold one."""
_LIMITLESS = map(unless, ("moe_router_group_topk", "moe_device_level_aux_loss_coeff", "moe_comm_aux_loss_coeff"))
_IN_FLOAT32 = all_of(where("moe_router_dtype", "fp32"), where("compute_dtype", "float32"))
_STAY = "beside adapters the biases of experts stay as they are"

ROWS = (
    Idle(_OF_EXPERTS, where("num_experts", None), "there are no experts without --num-experts"),
    needs("moe_log_drop_rate", "moe_drop_rate_capacity_factor"),
    needs("save_token_distribution", "summary_dir summary_collect_freq"),
    needs("moe_router_enable_expert_bias", "moe_router_bias_update_rate"),
    Idle(
        "moe_router_enable_expert_bias moe_router_bias_update_rate",
        lambda config: not config.moe_config.scores_all_experts,
        _NO_SCORES,
    ),
    needs("moe_expert_capacity_factor", "moe_token_drop_policy"),
    needs("moe_router_group_topk", "moe_router_group_score_topk"),
    needs("moe_shared_expert_intermediate_size", "moe_shared_expert_gate moe_shared_expert_overlap"),
    needs("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"),
    Idle(
        "overlap_moe_expert_parallel_comm",
        where("expert_model_parallel_size", 1),
        "needs --expert-model-parallel-size 2 or more",
    ),
    Idle(
        "overlap_moe_expert_parallel_comm",
        lambda config: config.against_pairs,
        "a layer that is computed again, fetched or put away as a whole (--recompute-granularity full, --zero-stage 2 "
        "or 3, --swap-attention, ...) is in one state at a time",
    ),
    Idle(
        "overlap_moe_expert_parallel_comm",
        unless("pipeline_schedule", *PAIRED),
        f"--pipeline-schedule has an order of its own, unless it is {' or '.join(sorted(PAIRED))}",
    ),
    needs("moe_grouped_gemm", "enable_gmm_safe_tokens"),
    needs("hot_expert_num", "cold_token_percent hot_expert_update_step"),
    Idle("hot_expert_num hot_expert_update_step", _COPIES_NONE, _HOT_NEED),
    Idle(
        "moe_router_score_function moe_router_pre_softmax moe_router_norm_topk_prob moe_router_topk_scaling_factor "
        "moe_router_num_groups moe_router_group_topk moe_router_group_score_topk moe_router_enable_expert_bias "
        "moe_router_bias_update_rate",
        _routes_in_its_own_way,
        _OWN_WAY,
    ),
    Idle(
        "moe_aux_loss_coeff",
        lambda config: set(BALANCING_LOSSES).isdisjoint(config.moe_config.balancing),
        "this --moe-router-load-balancing-type is no loss",
    ),
    Idle("moe_pad_expert_input_to_capacity", where("moe_token_dispatcher_type", "allgather"), _TO_ALL),
    Idle(
        "moe_router_num_groups",
        all_of(*_LIMITLESS),
        "groups of experts act only on --moe-router-group-topk and on device- or communication-level losses",
    ),
    Idle("moe_router_pre_softmax", unless("moe_router_score_function", "softmax"), _ALONE),
    Idle("moe_router_norm_topk_prob", _scores_sum_to_one, _SUM_TO_ONE),
    Idle("moe_router_dtype", _IN_FLOAT32, "the router computes in float32 already"),
    Idle(
        "moe_token_dispatcher_type moe_shared_expert_overlap",
        _KEEPS_TOKENS,
        "no token leaves its rank without --expert-model-parallel-size",
    ),
    Idle("moe_router_bias_update_rate", lambda config: config.lora_config.use_lora, _STAY),
)
