"""Flags that are ignored: those of logs and of figures in them, logging back ends, profiles, garbage collection."""

from mapping.flags.flag import group, ignored

FLAGS = group(
    "Logging: logs, back ends, profiles",
    ignored(
        "there is no PyTorch profiler and no CUDA here; --profile and --trace record a step",
        """
        --use-pytorch-profiler --pytorch-profiler-collect-shapes --pytorch-profiler-collect-callstack
        --pytorch-profiler-collect-chakra --memory-snapshot-path=str:snapshot.pickle --record-memory-history
        --record-shapes --nvtx-ranges
        """,
    ),
    ignored(
        "curves go to TensorBoard, W&B, MLflow and SwanLab; there is no such logging back end here",
        """
        --otel-enabled --otel-service-name=str --otel-span-groups=str
        --no-one-logger>enable_one_logger=off --one-logger-project=str:megatron-lm --one-logger-run-name=str
        --one-logger-async --app-tag-run-name=str --app-tag-run-version=str:0.0.0 --enable-one-logger
        --one-logger-entity=str:hwinf_dcm
        """,
    ),
    ignored(
        "this figure is not measured; the log has memory, TFLOP/s and MFU, and --log-straggler names slow ranks",
        "--log-device-memory-used --log-energy --op-cal-tflops",
    ),
    ignored(
        "--log-straggler compares the ranks at each log line from the first on, and has no server of its own",
        "--straggler-ctrlr-port=int:65535 --disable-straggler-on-startup",
    ),
    ignored("--wandb-project alone switches W&B on", "--use-wandb"),
    ignored("MindSpore's profiler writes files of one form", "--profile-export-type=str{text,db}:text"),
    ignored(
        "Python's own garbage collection stays on; no result depends on when it runs",
        "--manual-gc --manual-gc-interval=int:0 --no-manual-gc-eval|--disable-manual-gc-eval=off",
    ),
    ignored(
        "this curve is always written",
        "--log-batch-size-to-tensorboard --no-log-learnig-rate-to-tensorboard>log_learning_rate_to_tensorboard=off",
    ),
    ignored("the log has one level of detail", "--logging-level=int --verbosity=str:INFO"),
)
