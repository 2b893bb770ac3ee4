"""How long and how training runs: steps, precision, gradients, checkpoints, log, profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, Unknown, option
from parallel_core.findings import Finding


@dataclass(kw_only=True)
class TrainingConfig(Config):
    """The training loop and what surrounds it."""

    seed: int = option("--seed", 1234, at_least=1)
    """Start of every random stream."""
    training_iters: int = option("--train-iters", 0, at_least=0)
    """Optimizer steps."""
    train_samples: int | None = option("--train-samples", None, at_least=1)
    """Samples to train on; when given, schedules are counted in samples."""
    exit_interval: int | None = option("--exit-interval", None, at_least=1)
    """Stop at the next iteration that this divides."""
    exit_duration_in_mins: int | None = option("--exit-duration-in-mins", None, at_least=1)
    """Stop after this many minutes."""
    exit_signal_handler: bool = option("--exit-signal-handler", False)
    """On SIGTERM write a checkpoint and stop."""
    skip_train: bool = option("--skip-train", False)
    """Evaluate only."""
    deterministic_mode: bool = option("--deterministic-mode", False)
    """Use only operators that give the same bits every time."""
    log_params_norm: bool = option("--log-params-norm", False)
    """Log the norm of the weights."""
    log_num_zeros_in_grad: bool = option("--log-num-zeros-in-grad", False)
    """Log how many gradients are zero."""
    check_weight_hash_across_dp_replicas_interval: int | None = option(
        "--check-weight-hash-across-dp-replicas-interval", None, at_least=1
    )
    """Every so many iterations check that data-parallel copies are equal."""
    log_interval: int = option("--log-interval", 100, at_least=1)
    """Iterations from one log line to the next."""
    eval_interval: int | None = option("--eval-interval", 1000, at_least=1)
    """Iterations from one evaluation to the next."""
    eval_iters: int = option("--eval-iters", 100, at_least=0)
    """Batches of one evaluation; 0: no evaluation."""
    calculate_per_token_loss: bool = option("--calculate-per-token-loss", False)
    """Divide by the tokens of the global batch once instead of averaging micro-batches."""
    check_for_nan_in_grad: bool = option("--no-check-for-nan-in-loss-and-grad", True)
    """Stop when a loss or gradient norm is not finite."""

    output_dir: str | None = option("--save", None)
    """Where checkpoints are written."""
    load_checkpoint: str | None = option("--load", None)
    """Checkpoint to start from."""
    save_interval: int | None = option("--save-interval", None, at_least=1)
    """Iterations from one checkpoint to the next."""
    keep_checkpoint_max: int = option("--keep-checkpoint-max", 5, at_least=1)
    """Newest checkpoints that are kept."""
    prefix: str = option("--ckpt-prefix", "network")
    """Start of checkpoint names."""
    ckpt_format: str = option("--ckpt-format", "torch_dist")
    """Which of Megatron's checkpoint layouts was asked for; one layout is written here, any of these names gives it."""
    no_save_optim: bool = option("--no-save-optim", False)
    """Leave the optimizer out of checkpoints."""
    no_save_rng: bool = option("--no-save-rng", False)
    """Leave random states out of checkpoints."""
    no_load_optim: bool = option("--no-load-optim", False)
    """Start the optimizer anew."""
    no_load_rng: bool = option("--no-load-rng", False)
    """Start random states anew."""
    ckpt_step: int | None = option("--ckpt-step", None, at_least=0)
    """The iteration to load; the newest if not given."""
    exit_on_missing_checkpoint: bool = option("--exit-on-missing-checkpoint", False)
    """Stop if `load_checkpoint` holds none, instead of starting anew."""
    save_retain_interval: int | None = option("--save-retain-interval", None, at_least=1)
    """Checkpoints of iterations that this divides are never removed, of the others only the newest is kept."""
    convert_from_huggingface: bool = option("--enable-hf2mg-convert", False)
    """`load_checkpoint` holds a HuggingFace model."""
    convert_to_huggingface: bool = option("--enable-mg2hf-convert", False)
    """Write checkpoints as HuggingFace models as well."""
    huggingface_model_type: str | None = option("--model-type-hf", None)
    """Which naming those use."""
    finetune: bool = option("--finetune", False)
    """Load weights only and count iterations from zero."""
    resume_training: bool = option("--resume-training", False)
    """Go on where `load_checkpoint` stopped: it must hold a checkpoint, and more than its weights are taken."""
    crc_check: bool = option("--resume-crc-check", False)
    """Verify the checkpoint's checksums before it is used."""
    new_dataset: bool = option("--new-dataset", False)
    """On resuming, start the data from its beginning."""

    bf16: bool = option("--bf16", False)
    """Compute in bfloat16 with float32 master weights."""
    fp16: bool = option("--fp16", False)
    """Compute in float16 with float32 master weights and a loss scale."""
    loss_scale: float | None = option("--loss-scale", None, at_least=0)
    """Fixed loss scale; none or 0: it adapts."""
    loss_scale_value: float = option("--initial-loss-scale", 2.0**32, above=0)
    """First value of an adapting loss scale."""
    loss_scale_window: float = option("--loss-scale-window", 1000.0, above=0)
    """Clean steps after which the scale grows."""
    loss_scale_factor: float = option("--loss-scale-factor", 2.0, above=1)
    """By how much the scale grows, and shrinks on overflow."""
    consecutive_hysteresis: bool = option("--consecutive-hysteresis", False)
    """Every clean step restores the overflows that are let through before the scale shrinks."""
    loss_scale_hysteresis: int = option("--hysteresis", 2, at_least=1)
    """Overflows before the scale shrinks."""
    min_loss_scale: float = option("--min-loss-scale", 1.0, above=0)
    """The scale never falls below this."""

    accumulate_allreduce_grads_in_fp32: bool = option("--accumulate-allreduce-grads-in-fp32", False)
    """Add up and reduce gradients in float32."""
    grad_reduce_in_bf16: bool = option("--grad-reduce-in-bf16", False)
    """Reduce gradients in bfloat16."""
    wrap_with_ddp: bool = option("--no-wrap-with-ddp", True)
    """Keep gradients in flat buckets."""
    bucket_size: int | None = option("--ddp-bucket-size", None, at_least=1)
    """Gradients in one bucket, a number of elements."""
    enable_mem_align: bool = option("--enable-mem-align", False)
    """Begin every parameter's gradient at an aligned address."""
    overlap_grad_reduce: bool = option("--overlap-grad-reduce", False)
    """Reduce each bucket as soon as it is full."""
    delay_grad_reduce: bool = option("--delay-grad-reduce", False)
    """On later stages, wait with that until the first stage is through."""
    use_distributed_optimizer: bool = option("--use-distributed-optimizer", False)
    """Share optimizer states out over data-parallel ranks."""
    zero_stage: int = option("--zero-stage", None, at_least=0, at_most=3)
    """What data-parallel ranks share out: 1 optimizer states, 2 gradients too, 3 weights too."""

    profile: bool = option("--profile", False)
    """Record a profile."""
    profile_save_path: str = option("--profile-save-path", "./profile_dir")
    """Where the profile is written."""
    profile_step_start: int = option("--profile-step-start", 10, at_least=0)
    """First iteration that is profiled."""
    profile_step_end: int = option("--profile-step-end", 12, at_least=0)
    """First iteration that no longer is."""
    profile_level: str = option("--profile-level", "level0", choices=("level_none", "level0", "level1", "level2"))
    """How much detail is recorded."""
    profile_with_stack: bool = option("--profile-with-stack", False)
    """Record Python stacks."""
    profile_with_cpu: bool = option("--profile-with-cpu", False)
    """Record the host."""
    profile_record_shapes: bool = option("--profile-record-shapes", False)
    """Record shapes."""
    profile_ranks: list[int] | None = option("--profile-ranks", None)
    """Ranks that are profiled; none: all."""
    profile_memory: bool = option("--profile-with-memory", False)
    """Record memory."""
    profile_framework: str | None = option("--profile-framework", None, choices=("all", "time"))
    """What is recorded of the framework's own work."""
    profile_communication: bool = option("--profile-communication", False)
    """Record collectives."""
    profile_parallel_strategy: bool = option("--profile-parallel-strategy", False)
    """Record how operators are split."""
    profile_aicore_metrics: int = option("--profile-aicore-metrics", 0, at_least=-1, at_most=6)
    """Which counters of the device's cores are recorded."""
    profile_l2_cache: bool = option("--profile-l2-cache", False)
    """Record cache hits."""
    profile_hbm_ddr: bool = option("--profile-hbm-ddr", False)
    """Record memory bandwidth."""
    profile_pcie: bool = option("--profile-pcie", False)
    """Record host traffic."""
    profile_data_process: bool = option("--profile-data-process", False)
    """Record the data pipeline."""
    profile_data_simplification: bool = option("--profile-data-simplification", False)
    """Remove raw data once it is analysed."""
    profile_op_time: bool = option("--no-profile-op-time", True)
    """Record the time of operators."""
    profile_offline_analyse: bool = option("--profile-offline-analyse", False)
    """Leave the analysis for later."""
    profile_dynamic_profiler_config_path: str | None = option("--profile-dynamic-profiler-config-path", None)
    """File that switches the profile on and off while training runs."""

    def derive(self) -> None:
        self.fill("zero_stage", lambda: int(self.use_distributed_optimizer))
        if not isinstance(self.loss_scale, Unknown) and self.loss_scale == 0:
            self.loss_scale = None
        if self.bf16 and not self.grad_reduce_in_bf16:
            self.accumulate_allreduce_grads_in_fp32 = True

    def rules(self) -> Iterator[Finding]:
        if self.use_distributed_optimizer != (self.zero_stage > 0):
            yield Finding(
                "--zero-stage",
                self.zero_stage,
                "--use-distributed-optimizer is stage 1 and needed by higher ones",
                "make them agree",
            )
        if self.bf16 and self.fp16:
            yield Finding(
                "--fp16", None, "does not go with --bf16: only one of the two can be the compute type", "remove one"
            )
        if self.loss_scale_value < self.min_loss_scale:
            yield Finding(
                "--initial-loss-scale",
                self.loss_scale_value,
                f"must not be less than --min-loss-scale {self.min_loss_scale:g}",
                "raise it",
            )
        if self.profile and self.profile_step_end < self.profile_step_start:
            yield Finding(
                "--profile-step-end",
                self.profile_step_end,
                f"must not come before --profile-step-start {self.profile_step_start}",
                "raise it",
            )
