"""Flags that change speed, memory or a log, never the result."""

from mapping.flags.flag import group, ignored, off, switch, value

FLAGS = group(
    "performance",
    *ignored(
        "there is no such fused kernel here, so it is off already",
        off("--no-gradient-accumulation-fusion", "gradient_accumulation_fusion"),
        off("--no-persist-layer-norm", "persist_layer_norm"),
        off("--no-bias-swiglu-fusion", "bias_swiglu_fusion"),
        off("--no-bias-dropout-fusion", "bias_dropout_fusion"),
    ),
    *ignored(
        "initial values are computed on the host in any case, the same for every layout",
        switch("--use-cpu-initialization"),
    ),
    *ignored(
        "there is one implementation of the model",
        switch("--use-mcore-models"),
    ),
    *ignored(
        "--collectives says which library moves the data",
        value("--distributed-backend", str, "nccl", choices=("nccl", "gloo", "hccl", "mccl")),
    ),
)
