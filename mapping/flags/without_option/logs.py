"""Flags without effect: logs, timers, profiles of other frameworks."""

from mapping.flags.flag import group, ignored

FLAGS = group(
    "Logging: logs, timers, profiles of other frameworks",
    ignored(
        "there is no such logging back end, or nothing to switch",
        """
        --use-pytorch-profiler --pytorch-profiler-collect-shapes --pytorch-profiler-collect-callstack
        --pytorch-profiler-collect-chakra --memory-snapshot-path=str:snapshot.pickle --record-shapes --nvtx-ranges
        --log-device-memory-used --log-max-attention-logit --log-energy --otel-enabled
        --otel-service-name=str --otel-span-groups=str --log-straggler --straggler-ctrlr-port=int:65535
        --straggler-minmax-count=int:1 --disable-straggler-on-startup
        --no-one-logger>enable_one_logger=off --one-logger-project=str:megatron-lm --one-logger-run-name=str
        --one-logger-async --app-tag-run-name=str --app-tag-run-version=str:0.0.0 --enable-one-logger
        --one-logger-entity=str:hwinf_dcm --op-cal-tflops --use-wandb --profile-export-type=str{text,db}:text
        --verbosity=str:INFO
        """,
    ),
    ignored(
        "it drives Python's garbage collector or the host only",
        "--manual-gc --manual-gc-interval=int:0 --no-manual-gc-eval|--disable-manual-gc-eval=off",
    ),
    ignored(
        "it is always written",
        "--log-batch-size-to-tensorboard --no-log-learnig-rate-to-tensorboard>log_learning_rate_to_tensorboard=off",
    ),
    ignored("there is one level of detail", "--logging-level=int"),
)
