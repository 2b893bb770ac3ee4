"""Flags that are ignored or refused: mixtures of experts."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Experts: mixtures of experts",
    ignored(
        "the device's own kernel is used where there is one; the result is the same",
        """
        --use-grouped-gemm-for-shared-expert --moe-use-grouped-tensor --moe-single-grouped-weight
        --moe-single-grouped-bias --moe-permute-fusion --moe-router-fusion --moe-use-legacy-grouped-gemm
        --use-fused-moe-token-permute-and-unpermute --moe-bmm-mc2 --moe-alltoall-mc2
        --te-gmm-mode=str{performance,compatible}:compatible --use-tutel
        """,
    ),
    ignored(
        "only memory and speed change",
        """
        --moe-layer-recompute --moe-paged-stash --moe-paged-stash-page-size=int:64
        --moe-paged-stash-buffer-size-factor-cuda=float:1.1 --moe-paged-stash-buffer-size-factor-cpu=float:0.0
        --gtp-expert-remat-nccl-ub --moe-adaptive-recompute-activation
        --moe-adaptive-recompute-activation-scale=float:2.0 --moe-zero-memory=str{disable,level0,level1}:disable
        --moe-zero-memory-num-layers=int --moe-unperm2-mem-optim-swap --moe-unperm2-mem-optim
        """,
    ),
    ignored(
        "only the order of work and communication changes, not the result",
        """
        --overlap-dispatch-backward-with-experts-wgrad
        --moe-permute-fusion-into-hybridep --use-pipe-experts --pipe-experts-multi-data=int:1
        --pipe-experts-multi-stream --moe-permutation-async-comm --moe-alltoall-overlap-comm
        --moe-allgather-overlap-comm --moe-zerc --enable-token-rearrange-opt
        """,
    ),
    ignored(
        "--moe-token-dispatcher-type says how tokens travel; this flag tunes libraries of GPUs for the same",
        """
        --moe-ncclep-zero-copy --moe-ncclep-static-shape --moe-enable-deepep
        --moe-flex-dispatcher-backend=str{deepep,hybridep,ncclep}:deepep
        --moe-hybridep-pad-uneven-dispatch-inputs --moe-flex-dispatcher-num-sms=int --moe-deepep-num-sms=int
        --moe-hybridep-num-sms=int --moe-hybridep-num-blocks-permute=int --moe-hybridep-num-blocks-unpermute=int
        --moe-hybridep-num-sms-preprocessing=int:108
        """,
    ),
    ignored("experts' scores stay float32 in any case", "--moe-revert-type-after-topk"),
    refused(
        "this debugging aid is not there; leave it out",
        """
        --save-tokens-per-expert-interval=int --moe-routing-trace-path=str --moe-routing-trace-max-training-iters=int
        --moe-routing-trace-capture-logits --moe-routing-trace-capture-hidden-states --moe-routing-trace-dump-weights
        """,
    ),
    refused(
        "an expert's weight has as many parts as --expert-tensor-parallel-size; --zero-stage 3 shares it over replicas "
        "too",
        "--expert-tensor-parallel-num-weight-shards=int",
    ),
    refused(
        "use --expert-model-parallel-size and --moe-tp-extend-ep", "--moe-extended-tp --moe-expert-parallel-size=int"
    ),
    ignored(
        "what this flag would send or compute in 8 bits is sent and computed in the type of --bf16",
        """
        --moe-dispatch-fwd-dtype=str{bf16,mxfp8}:bf16 --moe-combine-bwd-dtype=str{bf16,mxfp8}:bf16 --no-use-gmm-fp8=off
        """,
    ),
    ignored(
        "no rows are added for products of 8 bits, which are computed in the type of --bf16",
        "--moe-router-padding-for-quantization --moe-router-padding-for-fp8",
    ),
    refused(
        "experts and routers do not have the form that this flag asks for; leave it out",
        """
        --moe-shared-expert-glu-interleave-size=int
        --moe-router-quantile-balancing-ema=float:0.0 --moe-router-force-biased=float --moe-apply-probs-on-input
        --moe-latent-size=int --moe-mlp-glu-interleave-size=int --moe-expert-rank-capacity-factor=float
        --moe-use-sinkhorn --moe-input-feature-slicing
        """,
    ),
    refused(
        "a dense model's checkpoint is not made a mixture of experts; leave it out",
        "--moe-use-upcycling --moe-upcycling-granularity=int:1",
    ),
    refused(
        "DeepSpeed's own form of experts is out of scope; use Megatron's flags for experts",
        """
        --moe-token-dropping --expert-interval=int:1;2 --moe-no-drop --moe-dynamic-padding
        --moe-hierarchical-alltoallv --moe-experts-pipeline-degree=int:0
        --moe-eval-capacity-factor=float:1.0 --moe-min-capacity=int:4
        """,
    ),
    refused(
        "use --moe-aux-loss-coeff and --moe-router-load-balancing-type for the balancing loss",
        "--moe-loss-coeff=float:0.01",
    ),
    refused("the gate of a shared expert has one output; leave it out", "--shared-expert-gate-output-dimension=int:1"),
    refused(
        "this flag belongs to Pai-Megatron-Patch; use Megatron's flag for the same, if there is one",
        "--moe --moe-topk=int:1 --num-shared-experts=int",
    ),
)
