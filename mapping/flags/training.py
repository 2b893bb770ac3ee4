"""Flags: training."""

from mapping.flags.flag import group, off, switch, value

FLAGS = group(
    "training",
    value("--seed", int, 1234, "training_config.seed"),
    value("--train-iters", int, None, "training_config.training_iters"),
    value("--train-samples", int, None, "training_config.train_samples"),
    value("--exit-interval", int, None, "training_config.exit_interval"),
    value("--exit-duration-in-mins", int, None, "training_config.exit_duration_in_mins"),
    value("--log-interval", int, 100, "training_config.log_interval"),
    value("--eval-interval", int, None, "training_config.eval_interval"),
    value("--eval-iters", int, 100, "training_config.eval_iters"),
    switch("--calculate-per-token-loss", "training_config.calculate_per_token_loss"),
    off(
        "--no-check-for-nan-in-loss-and-grad", "check_for_nan_in_loss_and_grad", "training_config.check_for_nan_in_grad"
    ),
    value("--ddp-bucket-size", int, None, "training_config.bucket_size"),
    switch("--overlap-grad-reduce", "training_config.overlap_grad_reduce"),
    value("--zero-stage", int, None, "training_config.zero_stage", choices=(0, 1, 2, 3)),
    switch("--use-distributed-optimizer", "training_config.use_distributed_optimizer"),
    off("--no-wrap-with-ddp", "wrap_with_ddp", "training_config.wrap_with_ddp"),
    switch("--enable-mem-align", "training_config.enable_mem_align"),
    switch("--delay-grad-reduce", "training_config.delay_grad_reduce"),
    switch("--exit-signal-handler", "training_config.exit_signal_handler"),
    switch("--skip-train", "training_config.skip_train"),
    switch("--deterministic-mode", "training_config.deterministic_mode"),
    switch("--npu-deterministic", "training_config.deterministic_mode"),
    switch("--use-deter-comp", "training_config.deterministic_mode"),
    switch("--log-params-norm", "training_config.log_params_norm"),
    switch("--log-num-zeros-in-grad", "training_config.log_num_zeros_in_grad"),
    value(
        "--check-weight-hash-across-dp-replicas-interval",
        int,
        None,
        "training_config.check_weight_hash_across_dp_replicas_interval",
    ),
)
