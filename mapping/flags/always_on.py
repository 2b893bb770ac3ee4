"""Flags: always on."""

from mapping.flags.flag import group, ignored, off, switch, value, values
from mapping.flags.read import spec

FLAGS = group(
    "always on",
    *ignored(
        "only read when data is prepared beforehand",
        switch("--test-mode"),
        value("--handler-name", str, ""),
        value("--output-prefix", str),
        value("--workers", int, 1),
    ),
    *ignored(
        "only models of sentence pairs read it",
        value("--short-seq-prob", float, 0.1),
    ),
    *ignored(
        "there is nothing to switch: it holds always",
        value("--num-dataset-builder-threads", int, 1),
        value("--mid-level-dataset-surplus", float, 0.005),
        value("--tiktoken-pattern", str, choices=("v1", "v2")),
        switch("--tokenizer-hf-no-use-fast"),
        switch("--enable-experimental"),
        switch("--tokenizer-hf-use-fast"),
        off("--tokenizer-not-use-fast", "tokenizer_not_use_fast"),
        switch("--kv-head-repeat-before-uly-alltoall"),
        switch("--rmsnorm-weight-in-fp32"),
        switch("--init-norm-weight-in-fp32"),
        switch("--share-mtp-embedding-and-output-weight"),
    ),
    *ignored(
        "the mask follows --reset-attention-mask",
        value("--attention-mask-type", str, "causal", choices=("causal", "general")),
        value("--cp-attention-mask-type", str, dest="deprecated_cp_attention_mask_type", choices=("causal", "general")),
    ),
    *ignored(
        "the framework is MindSpore",
        value(
            "--ai-framework",
            str,
            "pytorch",
            choices=("pytorch", "mindspore"),
            refuses={"pytorch": "the framework is MindSpore; give mindspore"},
        ),
    ),
    *ignored(
        "a step is not run twice to find faulty hardware",
        value("--rerun-mode", str, "validate_results", choices=("disabled", "validate_results", "report_stats")),
    ),
    *ignored(
        "there is one Adam",
        value(
            "--optimizer-selection",
            str,
            "fused_adamw",
            choices=("fused_adamw", "fused_torch_adamw", "fused_ema_adamw"),
            refuses={"fused_ema_adamw": "averaging of weights is out of scope; use fused_adamw"},
        ),
    ),
    *ignored(
        "experts are Megatron's kind",
        value(
            "--moe-model-type",
            str,
            "megatron_moe",
            choices=("megatron_moe", "deepspeed_moe"),
            refuses={"deepspeed_moe": "use megatron_moe"},
        ),
    ),
    *ignored(
        "initial values are computed on the host in any case, the same for every layout",
        switch("--use-cpu-initialization"),
    ),
    *ignored(
        "every rank builds the indices that it does not find, so hosts need not share a file system",
        switch("--no-shared-storage"),
    ),
    *ignored(
        "there is one implementation of the model",
        switch("--use-mcore-models"),
    ),
    *ignored(
        "the model is what its flags say; this names layers that they describe too",
        values("--spec", spec, nargs="*"),
    ),
)
