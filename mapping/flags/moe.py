"""Flags: mixture of experts."""

from mapping.flags.flag import group, switch, value
from mapping.flags.read import layer_frequency

FLAGS = group(
    "mixture of experts",
    value("--num-experts", int, None, "moe_config.num_experts"),
    value("--moe-layer-freq", layer_frequency, 1, "moe_config.moe_layer_freq"),
    value("--moe-ffn-hidden-size", int, None, "moe_config.moe_ffn_hidden_size"),
    value("--moe-shared-expert-intermediate-size", int, None, "moe_config.moe_shared_expert_intermediate_size"),
    switch("--moe-shared-expert-gate", "moe_config.moe_shared_expert_gate"),
    switch("--moe-grouped-gemm", "moe_config.moe_grouped_gemm"),
    value("--moe-router-topk", int, 2, "moe_config.moe_router_topk"),
    value("--moe-router-load-balancing-type", str, "aux_loss", "moe_config.moe_router_load_balancing_type",
          choices=("aux_loss", "none", "seq_aux_loss", "global_aux_loss", "sinkhorn", "quantile_balancing")),
    value("--moe-aux-loss-coeff", float, 0.0, "moe_config.moe_aux_loss_coeff"),
    value("--moe-z-loss-coeff", float, None, "moe_config.moe_z_loss_coeff"),
    value("--moe-router-score-function", str, "softmax", "moe_config.moe_router_score_function",
          choices=("softmax", "sigmoid", "sqrtsoftplus")),
    switch("--moe-router-pre-softmax", "moe_config.moe_router_pre_softmax"),
    value("--moe-router-topk-scaling-factor", float, None, "moe_config.moe_router_topk_scaling_factor"),
    value("--moe-router-num-groups", int, None, "moe_config.moe_router_num_groups"),
    value("--moe-router-group-topk", int, None, "moe_config.moe_router_group_topk"),
    switch("--moe-router-enable-expert-bias", "moe_config.moe_router_enable_expert_bias"),
    value("--moe-router-bias-update-rate", float, 0.001, "moe_config.moe_router_bias_update_rate"),
    value("--moe-router-dtype", str, None, "moe_config.moe_router_dtype", choices=("fp32", "fp64")),
    value("--moe-input-jitter-eps", float, None, "moe_config.moe_input_jitter_eps"),
    value("--moe-token-dispatcher-type", str, "allgather", "moe_config.moe_token_dispatcher_type",
          choices=("allgather", "alltoall", "flex")),
    value("--moe-expert-capacity-factor", float, None, "moe_config.moe_expert_capacity_factor"),
    switch("--moe-pad-expert-input-to-capacity", "moe_config.moe_pad_expert_input_to_capacity"),
    value("--moe-token-drop-policy", str, "probs", "moe_config.moe_token_drop_policy", choices=("probs", "position")),
)
