"""Flags: communication libraries."""

from mapping.flags.flag import group, ignored, off, switch, value

FLAGS = group(
    "communication libraries",
    *ignored(
        "it tunes a library of another device",
        value("--pipeline-model-parallel-comm-backend", str, choices=("nccl", "ucc")),
        switch("--moe-enable-deepep"),
        value("--moe-flex-dispatcher-backend", str, "deepep", choices=("deepep", "hybridep", "ncclep")),
        switch("--moe-hybridep-pad-uneven-dispatch-inputs"),
        value("--moe-flex-dispatcher-num-sms", int),
        value("--moe-deepep-num-sms", int),
        value("--moe-hybridep-num-sms", int),
        value("--moe-hybridep-num-blocks-permute", int),
        value("--moe-hybridep-num-blocks-unpermute", int),
        value("--moe-hybridep-num-sms-preprocessing", int, 108),
        value("--nccl-communicator-config-path", str),
        off("--disable-gloo-process-groups", "use_gloo_process_groups"),
        switch("--use-sharp"),
        value("--sharp-enabled-group", str, choices=("dp", "dp_replica")),
        value("--distributed-timeout-seconds-after-init", int),
        value("--flight-recorder-dump-path", str),
        value("--flight-recorder-trace-buffer-size", int, 2000),
        off(
            "--no-flight-recorder-dump-on-timeout",
            "flight_recorder_dump_on_timeout",
            aliases=("--disable-flight-recorder-dump-on-timeout",),
        ),
        switch("--flight-recorder-include-stack-trace"),
        off(
            "--no-flight-recorder-include-only-active",
            "flight_recorder_include_only_active",
            aliases=("--disable-flight-recorder-include-only-active",),
        ),
        off(
            "--no-flight-recorder-extra-dump-on-exec",
            "flight_recorder_extra_dump_on_exec",
            aliases=("--disable-flight-recorder-extra-dump-on-exec",),
        ),
        switch("--use-nccl-ub", dest="nccl_ub"),
        switch("--disable-symmetric-registration"),
        switch("--disable-gloo-group"),
        value("--hccl-slice-size", int, 10485760),
        value("--hccl-group-buffer", str),
        switch("--hccl-group-buffer-adaptive"),
        value("--hccl-ep-group-buffer-adaptive-factor", float, -1.0),
        value("--hccl-op-mode", str),
    ),
    *ignored(
        "the launcher's environment says it",
        value("--local-rank", int, 0),
        value("--local_rank", int),
        value("--DDP-impl", str, "local", choices=("local", "torch")),
        value("--node-rank", int, 0),
        value("--master-addr", str, "127.0.0.1"),
        value("--master-port", int, 29500),
    ),
    *ignored(
        "--collectives says which library moves the data",
        value("--distributed-backend", str, "nccl", choices=("nccl", "gloo", "hccl", "mccl")),
    ),
)
