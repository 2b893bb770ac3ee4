"""Flags that are ignored or refused: recomputation, offloading, swapping."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Memory: recomputation, offloading, swapping",
    ignored(
        "there is one implementation of Adam, and it computes where its states lie",
        "--use-torch-optimizer-for-cpu-offload",
    ),
    ignored("there are no CUDA graphs here", "--delay-offload-until-cuda-graph"),
    ignored(
        "only memory and speed change",
        """
        --ep-overlap-early-attn-memory-release --gtp-remat-opt-in-modules=str+:[]
        --mlp-chunks-for-training=int:1 --empty-unused-memory-level=int{0,1,2}:0
        --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads=off --no-pin-cpu-params=off
        --gtp-remat-nccl-ub --checkpoint-num-layers=int:1
        --param-and-grad-buffer-pad=int --attention-mask-on-cpu
        --context-parallel-kv-cache-policy=str{full,half} --context-parallel-cache-interval=int:0
        --save-memory-ratio=float:0.2
        --mtp-mem-efficient-logits --memory-fragmentation --optimizer-offload-policy=str:static
        --optimizer-offload-auto-threshold=int:2147483648 --optimizer-offload-chunk-size=int:33554432
        """,
    ),
    ignored(
        "16-bit gradients are summed in float32 and rounded once, whatever type they are sent in",
        "--gtp-remat-reduce-scatter-with-fp32-accumulation",
    ),
    ignored("only the order of work and communication changes, not the result", "--use-nanopipe-swap"),
    ignored(
        "a bfloat16 weight and its float32 master weight share no memory, which takes 2 bytes more a weight; the "
        "result is the same; with the distributed optimizer a rank has the masters of its own part alone",
        "--reuse-fp32-param",
    ),
    ignored(
        "--cpu-offloading-num-layers alone says whose activations lie in host memory, without this switch",
        "--cpu-offloading",
    ),
    ignored(
        "no optimizer states are moved to the device for the update; --cpu-offload-optimizer keeps them in host "
        "memory, and updates there, with the same result",
        "--swap-optimizer --swap-optimizer-times=int:16",
    ),
    ignored(
        "all activations that are to lie in host memory are copied there, each by itself, on every stage alike and "
        "into memory that is not pinned, and each copy is waited for",
        """
        --cpu-offloading-retain-pinned-cpu-buffers --delta-offload-bytes-across-pp-ranks=int:0
        --activation-offload-fraction=float:1.0 --fine-grained-offloading-max-inflight-offloads=int
        """,
    ),
    ignored(
        "a part is computed again right before its backward, wherever the bubbles are; the result is the same",
        "--recompute-in-bubble --recompute-in-advance",
    ),
    ignored(
        "nothing is chosen by measuring a device's memory; say what is recomputed by --recompute-granularity or "
        "--select-recompute, and what is offloaded by --swap-attention",
        """
        --adaptive-recompute-device-size=int:-1 --adaptive-recompute-profiling-step=int:10
        --adaptive-recompute-device-swap --adaptive-memory-optimization --smart-swap --swap-layer-input
        --recompute-module-list=str --recompute-type=int:2
        """,
    ),
    ignored(
        "this flag would change the memory that latent attention takes, and no result",
        "--mla-swap-core-attn-out --mla-zero-memory",
    ),
    ignored(
        "the settings that say which layers of the last stage are recomputed count layers of multi-token prediction "
        "behind that stage's own; no result changes",
        "--recompute-mtp-norm --recompute-mtp-layer",
    ),
    refused(
        "products of several Householder matrices are out of scope; leave it out",
        "--gdp-num-chunk-states-to-recompute=int:2",
    ),
    refused(
        "hyper-connections are recomputed only together with their layer; use --recompute-granularity full",
        "--mhc-recompute-layer-num=int",
    ),
    refused("use --recompute-activations, or --recompute-granularity full", "--checkpoint-activations"),
)
