"""Flags: old names."""

from mapping.flags.flag import group, off, refused, switch, value

FLAGS = group(
    "old names",
    *refused(
        "use --micro-batch-size",
        value("--batch-size", int),
    ),
    *refused(
        "use --recompute-activations, or --recompute-granularity full",
        switch("--checkpoint-activations"),
    ),
    *refused(
        "use --lr-warmup-fraction",
        value("--warmup", int),
    ),
    *refused(
        "use --tensor-model-parallel-size",
        value("--model-parallel-size", int),
    ),
    *refused(
        "use --norm-epsilon",
        value("--layernorm-epsilon", float, 1e-05),
    ),
    *refused(
        "use --override-opt_param-scheduler",
        switch("--override-lr-scheduler"),
    ),
    *refused(
        "use --use-checkpoint-opt_param-scheduler",
        switch("--use-checkpoint-lr-scheduler"),
    ),
    *refused(
        "scaling is off already; leave it out",
        off("--no-query-key-layer-scaling", "apply_query_key_layer_scaling"),
    ),
)
