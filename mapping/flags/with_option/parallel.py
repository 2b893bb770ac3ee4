"""Flags of parallelism and of the process."""

from mapping.flags.flag import value
from mapping.flags.notations import integers, layer_list, literal
from mapping.flags.stages import pipeline_layout
from mapping.flags.with_option.build import Acting, read_by, refusing, same, switch, values
from parallel_core.sizes import CONTEXT_PARALLEL_ALGORITHMS

ACTING = Acting(
    {
        "--context-parallel-algo": refusing(
            f"use {', '.join(CONTEXT_PARALLEL_ALGORITHMS)}",
            "adaptive_cp_algo",
            "hybrid_adaptive_cp_algo",
            "mamba_cp_algo",
            also=("kvallgather_cp_algo",),
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
        "--recompute": {"type": literal},
        "--select-recompute": {"type": literal},
        "--select-recompute-exclude": {"type": literal},
        "--select-comm-recompute": {"type": literal},
        "--select-comm-recompute-exclude": {"type": literal},
        "--recompute-slice-activation": {
            "aliases": ("--distribute-saved-activations", "--distribute-checkpointed-activations")
        },
        "--offset": read_by(layer_list),
        "--expert-tensor-parallel-size": {
            "idle": (lambda args: args.moe_tp_extend_ep, "--moe-tp-extend-ep leaves every expert whole")
        },
    },
    (
        switch(
            "--moe-tp-extend-ep",
            "expert_model_parallel_size",
            "Distribute experts over tensor-parallel ranks too, each whole.",
            idle=(lambda args: args.tensor_model_parallel_size == 1, "needs --tensor-model-parallel-size 2 or more"),
            completes=("--expert-model-parallel-size",),
        ),
        value(
            "--pipeline-model-parallel-layout",
            pipeline_layout,
            "num_layer_list",
            "Virtual stages, split by |: E(mbedding), t for each layer, m(ulti-token prediction), L(oss); "
            "Et*3|(tt|)*5mL.",
        ),
        value(
            "--schedules-method",
            str,
            "pipeline_schedule",
            "Another schedule of MindSpeed: the nearest one is run, with the same result.",
            choices=("dualpipev",),
            stands_for={"dualpipev": "zb-h1 is run, which delays weight gradients too and has the same result"},
        ),
        same("--num-virtual-stages-per-pipeline-rank", "virtual_pipeline_model_parallel_size"),
        value("--pipeline-num-transformer-layers", layer_list, "num_layer_list"),
        values(
            "--cp-comm-type",
            str,
            "context_parallel_algo",
            "How keys and values reach other ranks; allgather gives the same as p2p, the ring.",
            default=["p2p"],
            choices=("p2p", "a2a", "allgather", "a2a+p2p"),
        ),
        values(
            "--hierarchical-context-parallel-sizes",
            int,
            "ulysses_degree_in_cp",
            "Ranks of the inner and the outer exchange of a hybrid context parallelism.",
        ),
    ),
)
