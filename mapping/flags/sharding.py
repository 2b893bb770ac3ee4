"""Flags: fully sharded data parallelism."""

from mapping.flags.flag import group, ignored, off, refused, switch, value

STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""What Megatron's FSDP shares out, by ZeRO stage."""

_ZERO = "training_config.zero_stage"
_OTHER_TYPES = dict.fromkeys(("bf16", "fp16"), "weights and gradients are added up in float32; use fp32")

FLAGS = group(
    "fully sharded data parallelism",
    switch("--use-megatron-fsdp", _ZERO, "Share out what --data-parallel-sharding-strategy says, by default all."),
    switch("--use-custom-fsdp", _ZERO, "The older name of --use-megatron-fsdp."),
    value(
        "--data-parallel-sharding-strategy",
        str,
        "optim_grads_params",
        _ZERO,
        "What --use-megatron-fsdp shares out: stages 0, 1, 2, 3.",
        choices=STRATEGIES,
    ),
    switch("--use-torch-fsdp2", _ZERO, "Stage 3."),
    switch("--enable-zero3", _ZERO, "Stage 3."),
    *ignored(
        "only memory and the order of communication change: a shard is gathered before it is used, whenever that is",
        switch("--init-model-with-meta-device"),
        value("--megatron-fsdp-version", int, 1, choices=(1, 2)),
        switch("--fsdp-manual-registration"),
        value("--outer-dp-sharding-strategy", str, "no_shard", choices=("no_shard", "optim")),
        switch("--fsdp-double-buffer"),
        value("--suggested-communication-unit-size", int),
        switch("--enable-full-sharding-in-hsdp"),
        off("--torch-fsdp2-no-reshard-after-forward", "torch_fsdp2_reshard_after_forward"),
        switch("--megatron-fsdp-enable-fine-grained-param-gather"),
        switch("--megatron-fsdp-max-pool-double-buffer"),
        switch("--fsdp-db-use-persist-buf-on-alloc-fail"),
    ),
    *ignored(
        "weights are kept, and gradients added up, in float32",
        value(
            "--megatron-fsdp-main-params-dtype",
            str,
            "fp32",
            choices=("fp32", "bf16", "fp16", "auto"),
            refuses={**_OTHER_TYPES, "auto": "weights are kept in float32; use fp32"},
        ),
        *(
            value(name, str, "auto", choices=("fp32", "bf16", "fp16", "auto"), refuses=_OTHER_TYPES)
            for name in ("--megatron-fsdp-main-grads-dtype", "--megatron-fsdp-grad-comm-dtype")
        ),
    ),
    *refused(
        "a file that groups modules and chooses their types is not read; --use-torch-fsdp2 alone shares all weights",
        value("--fsdp2-config-path", str),
    ),
    *refused(
        "this form of sharding is not done; use --use-distributed-optimizer or --zero-stage",
        switch("--layerzero"),
        value("--layerzero-config", str),
        switch("--distributed-optimizer-no-replica"),
    ),
    *refused(
        "a checkpoint must fit the model; convert it first",
        off(
            "--no-strict-fsdp-dtensor-load", "strict_fsdp_dtensor_load", aliases=("--disable-strict-fsdp-dtensor-load",)
        ),
    ),
)
