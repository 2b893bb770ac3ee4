"""Flags that are ignored or refused: recomputation, offloading, swapping."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Memory: recomputation, offloading, swapping",
    ignored(
        "there is one Adam, computed where its states lie",
        "--use-torch-optimizer-for-cpu-offload",
    ),
    ignored("there are no CUDA graphs here", "--delay-offload-until-cuda-graph"),
    ignored(
        "only memory and speed change",
        """
        --ep-overlap-early-attn-memory-release --gtp-remat-opt-in-modules=str+:[]
        --mlp-chunks-for-training=int:1 --empty-unused-memory-level=int{0,1,2}:0
        --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads=off --no-pin-cpu-params=off
        --gtp-remat-reduce-scatter-with-fp32-accumulation --gtp-remat-nccl-ub --checkpoint-num-layers=int:1
        --param-and-grad-buffer-pad=int --attention-mask-on-cpu
        --context-parallel-kv-cache-policy=str{full,half} --context-parallel-cache-interval=int:0
        --save-memory-ratio=float:0.2
        --mtp-mem-efficient-logits --memory-fragmentation --optimizer-offload-policy=str:static
        --optimizer-offload-auto-threshold=int:2147483648 --optimizer-offload-chunk-size=int:33554432
        """,
    ),
    ignored("only the order of work and communication changes, not the result", "--use-nanopipe-swap"),
    ignored(
        "a bfloat16 weight and its float32 master lie beside each other, 2 bytes more a weight; with the distributed "
        "optimizer a rank has its part of the masters alone; the result is the same",
        "--reuse-fp32-param",
    ),
    ignored(
        "alone it does nothing: it needs --cpu-offloading-num-layers, which says whose activations lie in host memory",
        "--cpu-offloading",
    ),
    ignored(
        "no states are moved to the device to be updated; --cpu-offload-optimizer keeps them in host memory, and "
        "updates them there, with the same result",
        "--swap-optimizer --swap-optimizer-times=int:16",
    ),
    ignored(
        "activations that go to host memory go one by one and whole, into memory that is not pinned",
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
        "it changes the memory of latent attention alone, and no result",
        "--mla-swap-core-attn-out --mla-zero-memory",
    ),
    ignored(
        "layers of multi-token prediction are recomputed as layers of the last stage, behind its own, by the settings "
        "for those; no result changes",
        "--recompute-mtp-norm --recompute-mtp-layer",
    ),
    refused(
        "linear and gated attention are out of scope; leave it out for full attention",
        "--gdp-num-chunk-states-to-recompute=int:2",
    ),
    refused(
        "hyper-connections run again with their layer alone; use --recompute-granularity full",
        "--mhc-recompute-layer-num=int",
    ),
    refused("use --recompute-activations, or --recompute-granularity full", "--checkpoint-activations"),
)
