"""Flags of parallelism and recomputation: the differences of their rows from the options that they fill, and further
flags."""

from mapping.flags.flag import value
from mapping.flags.notations import integers, layer_list, literal, pipeline_layout
from mapping.flags.with_option.build import Acting, read_by, refusing, same
from parallel_core.config.recompute import LISTED
from parallel_core.sizes import CONTEXT_PARALLEL_ALGORITHMS

ADAPTIVE = {
    "adaptive_cp_algo": "the ring is run, which has the same result and skips what a mask hides",
    "hybrid_adaptive_cp_algo": "the hybrid of ring and exchange is run, which has the same result",
}
"""Algorithm of MindSpeed that divides a sequence by the mask -> the sentence about what is run instead."""

ACTING = Acting(
    {
        "--context-parallel-algo": refusing(
            f"use {', '.join(CONTEXT_PARALLEL_ALGORITHMS)}",
            "mamba_cp_algo",
            also=("kvallgather_cp_algo", *ADAPTIVE),
            stands_for=ADAPTIVE,
            default=None,
        ),
        "--virtual-pipeline-model-parallel-size": {"aliases": ("--virtual-pipeline-model-parallel-size-ms",)},
        "--num-layer-list": read_by(layer_list),
        "--noop-layers": read_by(integers),
        "--no-overlap-p2p-communication": {"dest": "overlap_p2p_comm"},
        "--use-tp-pp-dp-mapping": {
            "type": None,
            "default": False,
            "choices": (),
            "help": "Number stages before data-parallel copies.",
        },
        **{f"--{name.replace('_', '-')}": {"type": literal} for name in LISTED},
        "--recompute-slice-activation": {
            "aliases": ("--distribute-saved-activations", "--distribute-checkpointed-activations")
        },
        "--offset": read_by(layer_list),
        "--expert-tensor-parallel-size": {
            "idle": (lambda args: args.moe_tp_extend_ep, "--moe-tp-extend-ep leaves every expert whole")
        },
    },
    (
        value(
            "--moe-tp-extend-ep",
            "expert_model_parallel_size",
            "Distribute experts over tensor-parallel ranks, too: each expert is whole on one rank.",
            idle=(lambda args: args.tensor_model_parallel_size == 1, "needs --tensor-model-parallel-size 2 or more"),
            completes=("--expert-model-parallel-size",),
        ),
        value(
            "--pipeline-model-parallel-layout=str",
            "num_layer_list",
            "Virtual stages, split by |: E(mbedding), t for each layer, m(ulti-token prediction), L(oss); "
            "Et*3|(tt|)*5mL.",
            type=pipeline_layout,
        ),
        value(
            "--schedules-method=str{dualpipev}",
            "pipeline_schedule",
            "MindSpeed's name of --pipeline-schedule dualpipev.",
        ),
        value(
            "--zero-bubble-v-schedule",
            "pipeline_schedule",
            "Zero Bubble's name of --pipeline-schedule zb-v.",
        ),
        value(
            "--zero-bubble-v-schedule-mem-setup=str{zb,half,min}:zb",
            "pipeline_schedule",
            "With --zero-bubble-v-schedule: zb, half and min are --pipeline-schedule zb-v, v-half and v-min.",
            idle=(lambda args: not args.zero_bubble_v_schedule, "needs --zero-bubble-v-schedule"),
            completes=("--zero-bubble-v-schedule",),
            refines=True,
        ),
        value(
            "--enable-zero-bubble",
            "pipeline_schedule",
            "Zero Bubble's name of --pipeline-schedule zb-1p, or zb-2p by --zero-bubble-max-pending-backward.",
            idle=(lambda args: args.zero_bubble_v_schedule, "--zero-bubble-v-schedule says which"),
        ),
        value(
            "--zero-bubble-max-pending-backward=str:auto",
            "pipeline_schedule",
            "With --enable-zero-bubble: as many as there are stages, or auto, is --pipeline-schedule zb-1p; twice as "
            "many is zb-2p.",
            idle=(
                lambda args: args.zero_bubble_v_schedule or not args.enable_zero_bubble,
                "needs --enable-zero-bubble without --zero-bubble-v-schedule",
            ),
            completes=("--enable-zero-bubble",),
            refines=True,
        ),
        same("--num-virtual-stages-per-pipeline-rank", "virtual_pipeline_model_parallel_size"),
        value("--pipeline-num-transformer-layers=str", "num_layer_list", type=layer_list),
        value(
            "--cp-comm-type=str+{p2p,a2a,allgather,a2a+p2p}:['p2p']",
            "context_parallel_algo",
            "How keys and values reach the other context-parallel ranks: p2p by a ring, a2a by exchanging sequence for "
            "heads, a2a+p2p by both; allgather is run as p2p, with the same result.",
        ),
        value(
            "--hierarchical-context-parallel-sizes=int+",
            "ulysses_degree_in_cp",
            "Sizes of the inner (all-to-all) and of the outer (ring) groups of hybrid context parallelism; the first "
            "is --ulysses-degree-in-cp.",
        ),
    ),
)
