"""What acts only beside something else: one row a condition under which options do nothing, and what they need.

Megatron lets such flags pass, so they are no findings; who reads a user's words says the reason. What never has an
effect says so in its option (`no_effect`); what the engine cannot do yet is in `unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import NamedTuple

from parallel_core.config.all import AllConfig
from parallel_core.config.base import Unjudged
from parallel_core.config.moe import BALANCING_LOSSES, SPARSE_MIXER, MoEConfig
from parallel_core.config.moe_monitors import MoEMonitorConfig
from parallel_core.config.muon import MuonConfig
from parallel_core.config.tree import path_of
from parallel_core.partition import chunk_counts
from parallel_core.recompute import RecomputePlan


class Idle(NamedTuple):
    """Options that do nothing under a condition."""

    options: tuple[str, ...]
    """The ends of their paths."""
    is_idle: Callable[[AllConfig], bool]
    reason: str


def without_effect(config: AllConfig) -> dict[str, str]:
    """Path of an option -> why its value does nothing, of a config that no rule has a finding about."""
    return {path: f"no effect: {reason}" for path, reason in _idle(config)}


def _idle(config: AllConfig) -> Iterator[tuple[str, str]]:
    for row in reversed(ROWS):
        with suppress(Unjudged):
            if row.is_idle(config):
                yield from ((path_of(name), row.reason) for name in row.options)


def _has_no_warm_up(config: AllConfig) -> bool:
    schedule = config.optimizer_config
    return not (schedule.lr_warmup_iters or schedule.lr_warmup_samples or schedule.lr_warmup_fraction)


def _groups_no_layers(config: AllConfig) -> bool:
    """Layers that --recompute lists by stage are grouped as --recompute-method uniform says."""
    recompute = config.recompute_config
    by_stage = recompute.recompute is not None and recompute.recompute_method == "uniform"
    return recompute.recompute_granularity is None and not by_stage


def _recomputes_no_module(config: AllConfig) -> bool:
    recompute = config.recompute_config
    return not (
        config.parallel_config.drops_outputs_on_cpu
        or recompute.select_recompute is not None
        or recompute.recompute_granularity == "selective"
        or recompute.recompute_norm
        or recompute.recompute_mla_up_proj
        or recompute.recompute_activation_function
    )


def _recomputes_all_layers(config: AllConfig) -> bool:
    counts = chunk_counts(config.model_config.num_layers, config.parallel_config)
    plan = RecomputePlan.of(config.recompute_config, counts)
    rows = zip(plan.full, counts, strict=True)
    return all(full >= layers for row in rows for full, layers in zip(*row, strict=True))


def _updates_by_sgd(config: AllConfig) -> bool:
    return config.optimizer_config.optimizer_type == "sgd"


def _routes_in_its_own_way(config: AllConfig) -> bool:
    return not {"sinkhorn", SPARSE_MIXER}.isdisjoint(config.moe_config.balancing)


def _limits_no_groups(config: AllConfig) -> bool:
    moe = config.moe_config
    balances_groups = moe.moe_device_level_aux_loss_coeff or moe.moe_comm_aux_loss_coeff
    return moe.moe_router_group_topk is None and not balances_groups


def _scores_sum_to_one(config: AllConfig) -> bool:
    """Sigmoid scores of several experts are divided by their sum in any case, that of one never."""
    moe = config.moe_config
    return moe.moe_router_score_function == "sigmoid" or not moe.moe_router_pre_softmax or moe.moe_router_topk == 1


_OF_EXPERTS = tuple(
    entry.name
    for kind in (MoEConfig, MoEMonitorConfig)
    for entry in fields(kind)
    if entry.name not in ("num_experts", "monitors")
)
ROWS = (
    Idle(("disable_jit_fuser",), lambda config: not config.parallel_config.compiles, "acts on --kernels ops on a CPU"),
    Idle(
        (
            *("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "dsa_indexer_loss_coeff"),
            "dsa_indexer_use_sparse_loss",
        ),
        lambda config: not config.model_config.sparse_attention.enabled,
        "there is no indexer without --experimental-attention-variant dsa or --enable-dsa-indexer",
    ),
    Idle(
        ("attention_dropout_rate",),
        lambda config: config.model_config.sparse_attention.enabled,
        "sparse attention has no dropout on its probabilities, as in Megatron",
    ),
    Idle(
        ("moe_drop_rate_capacity_factor",),
        lambda config: not config.moe_config.monitors.moe_log_drop_rate,
        "no rates are logged without --moe-log-drop-rate",
    ),
    Idle(
        ("summary_dir", "summary_collect_freq"),
        lambda config: not config.moe_config.monitors.save_token_distribution,
        "nothing is recorded without --save-token-distribution",
    ),
    Idle(
        ("moe_router_bias_update_rate",),
        lambda config: not config.moe_config.moe_router_enable_expert_bias,
        "there is no bias without --moe-router-enable-expert-bias",
    ),
    Idle(
        (
            *("moe_router_score_function", "moe_router_pre_softmax", "moe_router_norm_topk_prob"),
            *("moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk"),
            *("moe_router_group_score_topk", "moe_router_enable_expert_bias", "moe_router_bias_update_rate"),
        ),
        _routes_in_its_own_way,
        "--moe-router-load-balancing-type sinkhorn and sparsemixer_topk choose and weigh experts in their own way",
    ),
    Idle(
        ("moe_aux_loss_coeff",),
        lambda config: set(BALANCING_LOSSES).isdisjoint(config.moe_config.balancing),
        "this --moe-router-load-balancing-type is no loss",
    ),
    Idle(
        ("moe_pad_expert_input_to_capacity",),
        lambda config: config.moe_config.moe_token_dispatcher_type == "allgather",
        "needs --moe-token-dispatcher-type alltoall: an all-gather sends every token to every rank",
    ),
    Idle(
        ("moe_token_drop_policy",),
        lambda config: config.moe_config.moe_expert_capacity_factor is None,
        "no token is dropped without --moe-expert-capacity-factor",
    ),
    Idle(
        ("moe_router_num_groups",),
        _limits_no_groups,
        "limits nothing without --moe-router-group-topk",
    ),
    Idle(
        ("moe_router_group_score_topk",),
        lambda config: config.moe_config.moe_router_group_topk is None,
        "no group is chosen without --moe-router-group-topk",
    ),
    Idle(
        ("moe_router_norm_topk_prob",),
        _scores_sum_to_one,
        "scores of the chosen experts sum to one already, unless several come out of --moe-router-pre-softmax",
    ),
    Idle(
        ("moe_shared_expert_gate", "moe_shared_expert_overlap"),
        lambda config: config.moe_config.moe_shared_expert_intermediate_size is None,
        "there is no shared expert without --moe-shared-expert-intermediate-size",
    ),
    Idle(
        ("enable_gmm_safe_tokens",),
        lambda config: not config.moe_config.moe_grouped_gemm,
        "there is no grouped product without --moe-grouped-gemm",
    ),
    Idle(
        (
            *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
            "latent_norm_epsilon",
        ),
        lambda config: not config.model_config.multi_latent_attention.enabled,
        "needs --multi-latent-attention",
    ),
    Idle(
        ("loss_scaling_factor", "share_embedding_and_output_weight"),
        lambda config: not config.model_config.multi_token_prediction.depths,
        "no further token is predicted without --mtp-num-layers or --num-nextn-predict-layers",
    ),
    Idle(
        ("cold_token_percent", "hot_expert_update_step"),
        lambda config: not config.moe_config.hot_expert_num,
        "no expert is hot without --hot-expert-num",
    ),
    Idle(
        tuple(entry.name for entry in fields(MuonConfig)),
        lambda config: config.optimizer_config.optimizer_type != "muon",
        "needs --optimizer muon",
    ),
    Idle(
        ("pma_fused_num", "pma_interleave_step"),
        lambda config: config.optimizer_config.pma.pma_fused_algo is None,
        "needs --pma-fused-algo",
    ),
    Idle(
        ("pma_ema_alpha",),
        lambda config: config.optimizer_config.pma.pma_fused_algo != "ema",
        "needs --pma-fused-algo ema",
    ),
    Idle(("sgd_momentum",), lambda config: not _updates_by_sgd(config), "needs --optimizer sgd"),
    Idle(
        ("betas", "optimizer_config.eps", "adam_bias_correction"),
        _updates_by_sgd,
        "needs an optimizer with Adam's moments, not --optimizer sgd",
    ),
    Idle(
        ("optimizer_config.decoupled_weight_decay",),
        _updates_by_sgd,
        "--optimizer sgd adds weight decay to the gradient in any case",
    ),
    Idle(
        ("lr_wsd_decay_style", "lr_wsd_decay_iters", "lr_wsd_decay_samples"),
        lambda config: config.optimizer_config.lr_decay_style != "WSD",
        "needs --lr-decay-style WSD",
    ),
    Idle(
        ("lr_warmup_init", "lr_warmup_style"),
        _has_no_warm_up,
        "needs --lr-warmup-iters, --lr-warmup-samples or --lr-warmup-fraction",
    ),
    Idle(
        ("apply_wd_to_qk_layernorm",),
        lambda config: not config.model_config.qk_layernorm,
        "needs --qk-layernorm",
    ),
    Idle(
        ("bucket_size",),
        lambda config: not config.training_config.gradient.overlap_grad_reduce,
        "needs --overlap-grad-reduce: without it there is one bucket",
    ),
    Idle(
        ("bucket_size",),
        lambda config: config.training_config.gradient.zero_stage >= 2,
        "with ZeRO stages 2 and 3 (--zero-stage) a bucket is a layer",
    ),
    Idle(
        ("accumulate_allreduce_grads_in_fp32",),
        lambda config: (
            config.training_config.gradient.grad_reduce_in_bf16 and config.model_config.compute_dtype == "bfloat16"
        ),
        "--grad-reduce-in-bf16 counts, as in Megatron",
    ),
    Idle(
        ("grad_reduce_in_bf16",),
        lambda config: config.model_config.compute_dtype != "bfloat16",
        "needs --bf16",
    ),
    Idle(
        ("sliding_window.skip_freq",),
        lambda config: config.model_config.sliding_window.size is None,
        "needs --sliding-window or --window-size",
    ),
    Idle(
        ("pre_tokens",),
        lambda config: not config.model_config.fa_config.has_band,
        "this --sparse-mode is causal over the whole sequence",
    ),
    Idle(
        ("cpu_offload_params",),
        lambda config: config.parallel_config.device_target != "Ascend",
        "on a CPU weights are in host memory already",
    ),
    Idle(
        ("cpu_offload_optimizer", "nvme_path"),
        lambda config: config.training_config.offload.optimizer_offload_fraction == 0,
        "--optimizer-offload-fraction 0 keeps all states on the device",
    ),
    Idle(
        ("swap_modules",),
        lambda config: not config.recompute_config.swap_attention,
        "needs --swap-attention",
    ),
    Idle(
        ("offload_modules", "min_offloaded_tensor_size"),
        lambda config: not config.recompute_config.fine_grained_activation_offloading,
        "needs --fine-grained-activation-offloading",
    ),
    Idle(
        ("recompute_method", "recompute_num_layers"),
        _groups_no_layers,
        "needs --recompute-granularity full",
    ),
    Idle(
        ("recompute_modules",),
        lambda config: config.recompute_config.recompute_granularity != "selective",
        "needs --recompute-granularity selective",
    ),
    Idle(
        ("recompute_norm_num_layers",),
        lambda config: not config.recompute_config.recompute_norm,
        "needs --recompute-norm",
    ),
    Idle(
        ("recompute_mla_up_proj",),
        lambda config: not config.model_config.multi_latent_attention.enabled,
        "needs --multi-latent-attention",
    ),
    Idle(
        ("recompute_activation_function_num_layers",),
        lambda config: not config.recompute_config.recompute_activation_function,
        "needs --recompute-activation-function",
    ),
    Idle(
        ("select_recompute_exclude",),
        _recomputes_no_module,
        "needs --select-recompute, or another setting that computes modules again",
    ),
    Idle(
        (
            *("recompute_norm", "recompute_norm_num_layers", "recompute_mla_up_proj"),
            *("recompute_activation_function", "recompute_activation_function_num_layers"),
            *("select_recompute", "swap_attention", "swap_modules", "cpu_offloading_num_layers"),
            *("fine_grained_activation_offloading", "offload_modules", "min_offloaded_tensor_size"),
        ),
        _recomputes_all_layers,
        "all layers are computed again whole, and keep nothing but their input",
    ),
    Idle(
        ("lora_rank", "lora_alpha", "lora_dropout", "lora_config.cells", "lora_load"),
        lambda config: not config.lora_config.use_lora,
        "there are no adapters without --lora-target-modules",
    ),
    Idle(
        ("moe_router_bias_update_rate",),
        lambda config: config.lora_config.use_lora,
        "beside adapters the biases of experts stay as they are",
    ),
    Idle(
        _OF_EXPERTS,
        lambda config: config.moe_config.num_experts is None,
        "there are no experts without --num-experts",
    ),
)
"""Where several rows hold for an option, the first one's reason is said."""
