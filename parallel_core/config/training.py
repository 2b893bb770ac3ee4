"""Options of the loop: its length and the actions around it. Concerns such as checkpoints have files of their own."""

from parallel_core.config.base import Config, concern, option, section
from parallel_core.config.checkpoint import CheckpointConfig
from parallel_core.config.faults import FaultConfig
from parallel_core.config.gradient import GradientConfig
from parallel_core.config.log import LogConfig
from parallel_core.config.optimizer import OffloadConfig
from parallel_core.config.precision import PrecisionConfig
from parallel_core.config.profiler import ProfilerConfig


@section
class TrainingConfig(Config):
    """Options of the training loop."""

    seed: int = option("--seed", 1234, at_least=1)
    """Seed of all random numbers."""
    training_iters: int = option("--train-iters", 0, at_least=0)
    """Number of optimizer steps."""
    train_samples: int | None = option("--train-samples", None, at_least=1)
    """Number of samples to train on; when given, schedules are counted in samples."""
    epochs: float | None = option("--num_train_epochs", None, above=0)
    """Passes over the training data, where neither iterations nor samples are given."""
    exit_interval: int | None = option("--exit-interval", None, at_least=1)
    """Stop at the next iteration that this number divides."""
    exit_duration_in_mins: int | None = option("--exit-duration-in-mins", None, at_least=1)
    """Stop after this many minutes."""
    exit_signal_handler: bool = option("--exit-signal-handler", False)
    """Write a checkpoint and stop on SIGTERM or SIGUSR1."""
    skip_train: bool = option("--skip-train", False)
    """Evaluate only, without training."""
    deterministic_mode: bool = option("--deterministic-mode", False)
    """Use only operators that give the same bits in every run."""
    log_params_norm: bool = option("--log-params-norm", False)
    """Log the norm of all weights."""
    log_num_zeros_in_grad: bool = option("--log-num-zeros-in-grad", False)
    """Log the number of zeros in the gradients."""
    log_local_norm: bool = option("--log-local-norm", False)
    """Log the norm of each parameter's gradient."""
    check_weight_hash_across_dp_replicas_interval: int | None = option(
        "--check-weight-hash-across-dp-replicas-interval", None, at_least=1
    )
    """Iterations between two checks that data-parallel copies of weights are equal."""
    log_interval: int = option("--log-interval", 100, at_least=1)
    """Iterations from one log line to the next."""
    eval_interval: int | None = option("--eval-interval", 1000, at_least=1)
    """Iterations from one evaluation to the next."""
    eval_iters: int = option("--eval-iters", 100, at_least=0)
    """Number of batches of one evaluation; 0: no evaluation."""
    calculate_per_token_loss: bool = option("--calculate-per-token-loss", False)
    """Divide gradients by the tokens of the global batch, so that each token counts the same, instead of averaging
    micro-batches' means."""
    check_for_nan_in_grad: bool = option("--no-check-for-nan-in-loss-and-grad", True)
    """Stop when a loss or gradient norm is not finite."""

    checkpoint: CheckpointConfig = concern(CheckpointConfig)
    """Saving, loading and resuming."""
    precision: PrecisionConfig = concern(PrecisionConfig)
    """Options of 16-bit types and of the loss scale."""
    gradient: GradientConfig = concern(GradientConfig)
    """Options of gradients between data-parallel ranks."""
    offload: OffloadConfig = concern(OffloadConfig)
    """Options of optimizer states in host memory or in a file."""
    log: LogConfig = concern(LogConfig)
    """Options of the log."""
    faults: FaultConfig = concern(FaultConfig)
    """Options of results that cannot be right, and of slow ranks."""
    profiler: ProfilerConfig = concern(ProfilerConfig)
    """Options of profiles, traces and records of a few iterations."""

    def derive(self) -> None:
        if self.precision.bf16 and not self.gradient.grad_reduce_in_bf16:
            self.gradient.accumulate_allreduce_grads_in_fp32 = True
