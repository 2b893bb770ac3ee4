"""Flags of mixtures of experts: the differences of their rows from the options that they fill, and further flags."""

from mapping.flags.flag import value
from mapping.flags.notations import layer_frequency, parts
from mapping.flags.with_option.build import Acting, refusing, same
from parallel_core.config.moe import BALANCING

SOFTMAX_FIRST = ("softmax_topk", "group_limited_greedy", "pai_megatron_aux_loss")
ROUTERS = (*SOFTMAX_FIRST, "noaux_tc", "aux_loss")
"""MindSpeed-LLM's names for whole routers, whose balancing loss --seq-aux takes over each sequence."""

ACTING = Acting(
    {
        "--moe-layer-freq": {"type": layer_frequency},
        "--moe-router-load-balancing-type": refusing(
            "use aux_loss, seq_aux_loss, global_aux_loss, sinkhorn, softmax_topk or none",
            "quantile_balancing",
            also=(*BALANCING, "noaux_tc", *SOFTMAX_FIRST),
            nargs="1+",
        ),
        "--moe-aux-loss-coeff": {"nargs": "1+"},
        "--moe-input-jitter-eps": {"idle": (lambda args: args.input_jitter is False, "--input-jitter switches it off")},
        "--moe-router-score-function": refusing("use softmax, sigmoid or sqrtsoftplus", "sqrtsoftmax"),
        "--moe-token-dispatcher-type": {
            "also": ("alltoall_seq", "flex"),
            "stands_for": {
                "flex": "alltoall is run, with the same result: flex is the form of it that libraries of GPUs have",
                "alltoall_seq": "alltoall is run, with the same result",
            },
        },
    },
    (
        same("--moe-intermediate-size", "moe_ffn_hidden_size"),
        same("--moe-fb-overlap", "overlap_moe_expert_parallel_comm"),
        value(
            "--moe-model-type=str{megatron_moe,deepspeed_moe}:megatron_moe",
            "moe_expert_capacity_factor",
            "megatron_moe: Megatron's router. deepspeed_moe: DeepSpeed's, with a softmax over all experts before the "
            "best are chosen.",
            stands_for={
                "deepspeed_moe": "Megatron's experts, routed as DeepSpeed does; over its capacity an expert drops its "
                "last tokens"
            },
        ),
        value(
            "--moe-train-capacity-factor=float:1.0",
            "moe_expert_capacity_factor",
            "With --moe-model-type deepspeed_moe: most tokens that an expert takes, as a multiple of an even share.",
            idle=(lambda args: args.moe_model_type != "deepspeed_moe", "needs --moe-model-type deepspeed_moe"),
            completes=("--moe-model-type",),
        ),
        value(
            "--first-k-dense-replace=int",
            "moe_layer_freq",
            "Number of the first layers that have no experts.",
            idle=(
                lambda args: isinstance(args.moe_layer_freq, list),
                "the list of --moe-layer-freq says which layers have experts",
            ),
            completes=("--moe-layer-freq",),
            refines=True,
        ),
        same(
            "--n-shared-experts",
            "moe_shared_expert_intermediate_size",
            "Number of shared experts, each as wide as a routed one.",
        ),
        same("--shared-expert-gate", "moe_shared_expert_gate"),
        value(
            "--seq-aux",
            "moe_router_load_balancing_type",
            "Take the balancing loss over each sequence instead of over the whole batch.",
            idle=(
                lambda args: {*ROUTERS}.isdisjoint(parts(args.moe_router_load_balancing_type)),
                "needs a --moe-router-load-balancing-type with an auxiliary loss, such as aux_loss",
            ),
            completes=("--moe-router-load-balancing-type",),
            refines=True,
        ),
        same("--routed-scaling-factor", "moe_router_topk_scaling_factor"),
        same("--topk-group", "moe_router_group_topk"),
        same("--n-group", "moe_router_num_groups"),
        value("--router-gating-in-fp32", "moe_router_dtype", "Compute the router in float32."),
        value("--topk-softmax-in-fp32", "moe_router_dtype", "Compute the router's softmax in float32."),
        value(
            "--input-jitter=off",
            "moe_input_jitter_eps",
            "Multiply the router's input by no noise, whatever --moe-input-jitter-eps is.",
            idle=(lambda args: not args.moe_input_jitter_eps, "there is none without --moe-input-jitter-eps"),
            completes=("--moe-input-jitter-eps",),
        ),
        same("--moe-router-force-load-balancing", "moe_router_force_load_balancing"),
        same(
            "--enable-shared-expert", "moe_shared_expert_gate", "Add a shared expert with a gate, as in Qwen's models."
        ),
        same(
            "--shared-moe-ffn-hidden-size",
            "moe_shared_expert_intermediate_size",
            "Width of the shared expert that --enable-shared-expert asks for.",
        ),
    ),
)
