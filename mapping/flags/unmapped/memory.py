"""Flags without effect: recomputation, offloading, swapping."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Memory: recomputation, offloading, swapping",
    ignored(
        "there is no Transformer Engine here; its switches have nothing to act on",
        "--use-torch-optimizer-for-cpu-offload",
    ),
    ignored("there are no CUDA graphs here", "--delay-offload-until-cuda-graph"),
    ignored(
        "only memory and speed change",
        """
        --ep-overlap-early-attn-memory-release --cpu-offloading-num-layers=int:0
        --cpu-offloading-retain-pinned-cpu-buffers --gtp-remat-opt-in-modules=str+:[]
        --mlp-chunks-for-training=int:1 --fine-grained-activation-offloading --offload-modules=str+:[]
        --min-offloaded-tensor-size=int:1048576 --delta-offload-bytes-across-pp-ranks=int:0
        --activation-offload-fraction=float:1.0 --fine-grained-offloading-max-inflight-offloads=int
        --record-memory-history --empty-unused-memory-level=int{0,1,2}:0
        --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads=off
        --no-pin-cpu-params=off --gtp-remat-reduce-scatter-with-fp32-accumulation --gtp-remat-nccl-ub
        --checkpoint-num-layers=int:1 --param-and-grad-buffer-pad=int
        --adaptive-recompute-device-size=int:-1 --adaptive-recompute-profiling-step=int:10
        --adaptive-recompute-device-swap
        --recompute-in-bubble --recompute-in-advance --swap-attention
        --swap-modules=str:input_norm,self_attention,post_attention_norm --adaptive-memory-optimization
        --attention-mask-on-cpu --context-parallel-kv-cache-policy=str{full,half}
        --context-parallel-cache-interval=int:0 --reuse-fp32-param --save-memory-ratio=float:0.2
        --recompute-module-list=str --recompute-type=int:2 --smart-swap --swap-optimizer --swap-optimizer-times=int:16
        --mla-zero-memory --recompute-mla-up-proj --mla-swap-core-attn-out --mtp-mem-efficient-logits --swap-layer-input
        --recompute-mtp-norm --recompute-mtp-layer --memory-fragmentation --optimizer-offload-policy=str:static
        --optimizer-offload-auto-threshold=int:2147483648 --optimizer-offload-chunk-size=int:33554432 --cpu-offloading
        """,
    ),
    ignored("only the order of work and communication changes, not the result", "--use-nanopipe-swap"),
    refused(
        "linear and gated attention are out of scope; leave it out for full attention",
        "--gdp-num-chunk-states-to-recompute=int:2",
    ),
    refused("hyper-connections are out of scope; leave it out for the plain residual", "--mhc-recompute-layer-num=int"),
    refused("use --recompute-activations, or --recompute-granularity full", "--checkpoint-activations"),
)
