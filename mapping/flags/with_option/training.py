"""Flags of the training loop, checkpoints, precision, gradients, sharding, logs and profiles: the differences of their
rows from the options that they fill, and further flags."""

from mapping.flags.flag import value
from mapping.flags.with_option.build import Acting, refusing, same

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Names of what Megatron's FSDP shards, in the order of ZeRO's stages 0 - 3."""

ACTING = Acting(
    {
        "--train-iters": {"default": None},
        "--num_train_epochs": {"aliases": ("--epochs",)},
        "--eval-interval": {"default": None},
        "--save-interval": {"aliases": ("--persistent-save-interval",)},
        "--ckpt-format": refusing("use safetensors, or torch_dist, which gives the same", "zarr"),
        "--no-use-tokenizer-model-from-checkpoint-args": {
            "aliases": ("--disable-use-tokenizer-model-from-checkpoint-args",)
        },
        "--resume-training": {"default": None},
        "--loss-scale-window": {"default": None},
        "--zero-stage": {"choices": (0, 1, 2, 3)},
        "--qat-scheme": refusing(
            "rounding activations to 4 or 8 bits is not done; use w4a16-mxfp4, which rounds weights alone",
            *("w4a4-mxfp4", "w4a8-moe-only"),
        ),
        "--profile-with-memory": {"aliases": ("--profile-memory",)},
        "--no-log-loss-scale-to-tensorboard": {"aliases": ("--disable-log-loss-scale-to-tensorboard",)},
        "--no-barrier-with-level-1-timing": {"dest": "barrier_with_L1_time"},
        "--ddp-bucket-size": {"aliases": ("--bucket-size",)},
        "--ddp-average-in-collective": {"aliases": ("--average-in-collective",)},
    },
    (
        same(
            "--no-resume-training",
            "resume_training",
            "Take weights alone from --load, as --finetune does.",
            dest="resume_training",
            default=None,
            stores=False,
        ),
        same(
            "--model_name_or_path",
            "load_checkpoint",
            "HuggingFace's name of --load with --no-resume-training.",
            idle=(lambda args: args.resume_from_checkpoint, "--resume_from_checkpoint says what is loaded"),
        ),
        same("--resume_from_checkpoint", "load_checkpoint", "HuggingFace's name of --load with --resume-training."),
        same("--resume-crc-check", "crc_check", dest="resume_crc_check", default=True, stores=True),
        same(
            "--parallel-optimizer-comm-recompute",
            "parallel_optimizer_comm_recompute",
            dest="parallel_optimizer_comm_recompute",
            default=True,
            stores=True,
        ),
        same("--check-for-nan-in-loss-and-grad", "check_for_nan_in_grad", stores=True),
        value("--adaptive-loss-scale", "loss_scaler", "Short for --loss-scaler adaptive."),
        same("--o2-gradient", "grad_reduce_in_bf16", "Accumulate and reduce gradients in bfloat16."),
        same("--npu-deterministic", "deterministic_mode"),
        same("--use-deter-comp", "deterministic_mode"),
        value("--use-megatron-fsdp", "zero_stage", "Shard over replicas what --data-parallel-sharding-strategy says."),
        value("--use-custom-fsdp", "zero_stage", "The older name of --use-megatron-fsdp."),
        value(
            f"--data-parallel-sharding-strategy=str{{{','.join(STRATEGIES)}}}:{STRATEGIES[-1]}",
            "zero_stage",
            "With --use-megatron-fsdp: the four values, in this order, are --zero-stage 0, 1, 2, 3.",
            completes=("--use-megatron-fsdp", "--use-custom-fsdp"),
        ),
        value(
            "--megatron-fsdp-grad-comm-dtype=str{fp32,bf16,fp16,auto}:auto",
            "communication_data_type",
            "Type in which gradients are sent with --use-megatron-fsdp; auto: the type that they are added up in.",
        ),
        value("--use-torch-fsdp2", "zero_stage", "The same as --zero-stage 3."),
        value("--enable-zero3", "zero_stage", "The same as --zero-stage 3."),
        same("--optimizer-cpu-offload", "cpu_offload_optimizer"),
    ),
)
