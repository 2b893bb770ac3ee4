"""Flags that must be given, that exclude each other, or that need another, by name; `mapping.checks` reads them."""

REQUIRED = (
    ("--micro-batch-size",),
    ("--lr",),
    ("--train-iters", "--train-samples", "--num_train_epochs"),
)
"""Tuples of flags: a training must be given at least one of each tuple. Options that a model needs are checked by its
configuration."""

EXCLUSIVE = (
    ("--train-iters", "--train-samples"),
    ("--lr-decay-iters", "--lr-decay-samples"),
    ("--lr-warmup-fraction", "--lr-warmup-iters", "--lr-warmup-samples"),
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    ("--data-path", "--mock-data"),
    ("--resume-training", "--no-resume-training"),
    ("--resume_from_checkpoint", "--no-resume-training"),
    ("--save-retain-interval", "--keep-checkpoint-max"),
    ("--use-torch-fsdp2", "--use-distributed-optimizer"),
    ("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp"),
    ("--fc-type", "--geglu"),
    ("--fc-type", "--gelu-tanh"),
    ("--fc-type", "--quick-geglu"),
    ("--use-legacy-models", "--multi-latent-attention"),
    ("--main-grads-dtype", "--accumulate-allreduce-grads-in-fp32"),
    ("--wrap-with-ddp", "--no-wrap-with-ddp"),
)
"""Tuples of flags: at most one of each tuple may have a value that asks for something. For flags that fill one field
`mapping.checks` finds out whether they agree."""

NEEDS = {
    "--kv-compress": ("--compress-ratios",),
    "--save": ("--save-interval",),
    "--overwrite-save": ("--save",),
    "--on-save-failure": ("--save",),
    "--lr-decay-samples": ("--train-samples",),
    "--lr-warmup-samples": ("--train-samples",),
    "--lr-wsd-decay-samples": ("--train-samples",),
    "--rampup-batch-size": ("--train-samples",),
    "--step-batch-size-schedule": ("--train-samples",),
    **dict.fromkeys(
        ("--lr-decay-iters", "--lr-warmup-iters", "--lr-wsd-decay-iters"), ("--train-iters", "--num_train_epochs")
    ),
    **dict.fromkeys(
        (
            "--first-k-dense-replace",
            "--moe-aux-loss-coeff",
            "--moe-comm-aux-loss-coeff",
            "--moe-device-level-aux-loss-coeff",
            "--moe-expert-capacity-factor",
            "--moe-ffn-hidden-size",
            "--moe-layer-freq",
            "--moe-router-group-topk",
            "--moe-router-num-groups",
            "--moe-router-topk",
            "--moe-shared-expert-intermediate-size",
            "--moe-z-loss-coeff",
        ),
        ("--num-experts",),
    ),
    "--start-weight-decay": ("--end-weight-decay",),
    "--end-weight-decay": ("--start-weight-decay",),
    "--merge-file": ("--vocab-file",),
    "--n-shared-experts": ("--moe-ffn-hidden-size", "--moe-intermediate-size", "--ffn-hidden-size"),
    "--use-fused-swiglu": ("--swiglu",),
    "--square-alibi-mask": ("--fill-neg-inf",),
    "--fill-neg-inf": ("--square-alibi-mask",),
    "--fsdp2-config-path": ("--use-torch-fsdp2",),
    "--data-parallel-sharding-strategy": ("--use-megatron-fsdp", "--use-custom-fsdp"),
    "--megatron-fsdp-grad-comm-dtype": ("--use-megatron-fsdp", "--use-custom-fsdp"),
    "--enable-shared-expert": ("--shared-moe-ffn-hidden-size",),
    "--shared-moe-ffn-hidden-size": ("--enable-shared-expert",),
    "--main-grads-dtype": ("--use-precision-aware-optimizer",),
}
"""Flag -> flags, at least one of which must have a value beside it."""
