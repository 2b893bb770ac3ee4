"""A legal value other than the default for every flag, found by trying."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from mapping.flags import Flag
from parallel_core.config import AllConfig
from parallel_core.config.base import Unknown
from tests.support.mapping.lines import reading

NUMBERS = ("2", "1", "4", "3", "0", "8", "128", "1024", "0.5", "0.25", "1e-4")
WORDS = (
    "8,0", *NUMBERS, "float16", "mlp", "left", "true", "True", "1,1,1", "Et|tttL", "0:8", "x", "bias", "core_attn",
    "linear_qkv", "M*-M", "0 4 128 4", "A100",
)  # fmt: skip
"""Values to try for a flag without choices; its type and the rules tell which are legal."""

FIRST_START = "--load not/saved/yet --save not/saved/yet --save-interval 4"
ROTARY = "--position-embedding-type rope"
FOLDED = "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights"
STATE_SPACES = "--mamba-num-groups 1"
SAMPLES = "~train-iters --train-samples 100"

EXPERTS = (
    "--expert-model-parallel-size",
    "--first-k-dense-replace",
    "--moe-aux-loss-coeff",
    "--moe-expert-capacity-factor",
    "--moe-ffn-hidden-size",
    "--moe-layer-freq",
    "--moe-router-num-groups",
    "--moe-router-topk",
    "--moe-shared-expert-intermediate-size",
    "--moe-shortcut-connected",
    "--moe-z-loss-coeff",
    "--num-zero-experts",
)

LOSS_SCALE = (
    "--initial-loss-scale",
    "--loss-scale",
    "--loss-scale-factor",
    "--loss-scale-window",
    "--hysteresis",
    "--min-loss-scale",
    "--consecutive-hysteresis",
    "--loss-scaler",
    "--adaptive-loss-scale",
    "--max-scale-window",
    "--min-scale-window",
)

MUP = (
    *("--mup-base-hidden-size", "--mup-embedding-mult", "--mup-output-mult", "--mup-base-head-dim"),
    "--mup-attn-scale-power",
)

COMPANY = {
    **dict.fromkeys(LOSS_SCALE, "--fp16"),
    "--embedding-dtype": "--fp16 --params-dtype float32",
    "--wandb-project": "--wandb-exp-name x",
    "--use-checkpoint-args": FIRST_START,
    "--use-mp-args-from-checkpoint-args": f"{FIRST_START} --use-checkpoint-args",
    **dict.fromkeys(
        ("--moe-comm-aux-loss-coeff", "--moe-device-level-aux-loss-coeff"),
        "--num-experts 4 --moe-router-num-groups 2",
    ),
    **dict.fromkeys(EXPERTS, "--num-experts 4"),
    "--patch-tokenizer-type": FIRST_START,
    "--add-bias-linear": "--disable-bias-linear",
    "--drop-remainder": "--no-drop-remainder",
    "--moe-model-type": "--num-experts 4",
    "--moe-train-capacity-factor": "--num-experts 4 --moe-model-type deepspeed_moe",
    "--add-dense-bias": "--disable-bias-linear",
    "--add-qkv-bias": "--disable-bias-linear",
    "--apply-rope-fusion": f"{ROTARY} --no-rope-fusion",
    "--num-nextn-predict-layers": ROTARY,
    "--share-mtp-embedding-and-output-weight": f"{ROTARY} --num-nextn-predict-layers 1",
    "--check-for-nan-in-loss-and-grad": "--no-check-for-nan-in-loss-and-grad",
    **dict.fromkeys(
        ("--data-parallel-sharding-strategy", "--megatron-fsdp-grad-comm-dtype"),
        "--use-megatron-fsdp",
    ),
    "--clip-grad-value": "--clip-grad 0",
    "--dataset": "--train-data-path x",
    "--max-padding-length": "--train-data-path x --dataset LLama-SFT-Raw",
    **dict.fromkeys(MUP, "--use-mup"),
    "--decoupled-min-lr": "--decoupled-lr 1e-2",
    "--exp-avg-dtype": "--use-precision-aware-optimizer",
    "--exp-avg-sq-dtype": "--use-precision-aware-optimizer",
    "--main-grads-dtype": "--bf16 --use-precision-aware-optimizer",
    "--delay-grad-reduce": "--overlap-grad-reduce",
    "--enable-shared-expert": "--num-experts 4 --shared-moe-ffn-hidden-size 64",
    "--encoder-num-layers": "~num-layers",
    "--encoder-seq-length": "~seq-length --max-position-embeddings 1024",
    "--end-weight-decay": "--weight-decay-incr-style linear --start-weight-decay 0",
    "--fp32-residual-connection": "--fp16",
    **dict.fromkeys(
        ("--enable-dsa-indexer", "--experimental-attention-variant"),
        "--multi-latent-attention --kv-lora-rank 8 --dsa-indexer-loss-coeff 0.1",
    ),
    "--indexer-loss-coeff": "--multi-latent-attention --kv-lora-rank 8 --enable-dsa-indexer",
    "--group-query-attention": "--num-query-groups 2",
    "--hierarchical-context-parallel-sizes": "--context-parallel-size 4 --cp-comm-type a2a+p2p",
    **dict.fromkeys(("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model"), STATE_SPACES),
    "--mamba-expand": f"{STATE_SPACES} --is-hybrid-model",
    "--input-jitter": "--moe-input-jitter-eps 0.1",
    "--lora-r": "--lora-target-modules linear_qkv",
    "--lr-decay-samples": SAMPLES,
    "--lr-warmup-samples": SAMPLES,
    "--lr-wsd-decay-samples": SAMPLES,
    "--merge-file": "--vocab-file x",
    **dict.fromkeys(
        ("--gradient-accumulation-steps", "--gradient_accumulation_steps", "--micro-batch-num"), "~global-batch-size"
    ),
    "--microbatch-group-size-per-virtual-pipeline-stage": (
        "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2"
    ),
    **dict.fromkeys(("--hot-expert-num", "--moe-enable-routing-replay"), "--num-experts 4"),
    "--fp8-simulate": "--bf16 --fp8-format hybrid",
    "--multi-latent-attention": "--kv-lora-rank 8",
    "--multi-head-latent-attention": "--kv-lora-rank 8",
    "--moe-router-group-score-topk": "--num-experts 4 --moe-router-num-groups 2 --moe-router-group-topk 1",
    "--moe-router-group-topk": "--num-experts 4 --moe-router-num-groups 4",
    **dict.fromkeys(
        ("--overlap-moe-expert-parallel-comm", "--moe-fb-overlap"), "--num-experts 4 --expert-model-parallel-size 2"
    ),
    "--moe-tp-extend-ep": "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel",
    "--n-shared-experts": "--num-experts 4 --moe-ffn-hidden-size 64",
    "--num-layers-per-virtual-pipeline-stage": "--pipeline-model-parallel-size 2",
    **dict.fromkeys(("--num_train_epochs", "--epochs"), "~train-iters --max_train_samples 80"),
    "--num-query-groups": "--group-query-attention",
    "--num-distributed-optimizer-instances": "--use-distributed-optimizer",
    "--overlap-param-gather": "--use-distributed-optimizer --overlap-grad-reduce",
    "--pipeline-model-parallel-layout": "--pipeline-model-parallel-size 2",
    "--pad-vocab-size-to": "~vocab-size --vocab-size 100",
    "--padded-vocab-size": "~vocab-size --vocab-size 100",
    "--rampup-batch-size": SAMPLES,
    "--recompute-modules": "--recompute-granularity selective",
    "--step-batch-size-schedule": SAMPLES,
    "--schedules-method": (
        "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights "
        "~global-batch-size --global-batch-size 64"
    ),
    "--resume-training": "--load x",
    "--resume-crc-check": "--no-resume-crc-check",
    "--parallel-optimizer-comm-recompute": "--no-parallel-optimizer-comm-recompute",
    "--rope-scaling-type": ROTARY,
    "--rotary-scaling-factor": "--multi-latent-attention --kv-lora-rank 8",
    "--rope-type": ROTARY,
    "--rotary-seq-len-interpolation-factor": ROTARY,
    "--save": "--save-interval 4",
    "--save-retain-interval": "--save x --save-interval 4",
    "--overwrite-save": "--save x --save-interval 4",
    "--on-save-failure": "--save x --save-interval 4",
    "--sequence-parallel": "--tensor-model-parallel-size 2",
    "--shared-moe-ffn-hidden-size": "--num-experts 4 --enable-shared-expert",
    "--zero-bubble-max-pending-backward": "--pipeline-model-parallel-size 2 --enable-zero-bubble",
    "--zero-bubble-v-schedule": FOLDED,
    "--zero-bubble-v-schedule-mem-setup": f"{FOLDED} --zero-bubble-v-schedule",
    "--standalone-embedding-stage": "--pipeline-model-parallel-size 2",
    "--start-weight-decay": "--weight-decay-incr-style linear --end-weight-decay 1",
    "--test-data-path": "--train-data-path x",
    "--train-samples": "~train-iters --train-samples 50",
    "--use-fused-rmsnorm": "--normalization RMSNorm",
    "--use-fused-rotary-pos-emb": f"{ROTARY} --no-rope-fusion",
    **dict.fromkeys(
        (
            "--activation-func-clamp-value",
            "--glu-linear-offset",
            "--swiglu-limit",
            "--use-fused-swiglu",
            "--fc-type",
            "--gate-multiplier",
        ),
        "--swiglu",
    ),
    "--no-pre-norm": "--use-sandwich-norm",
    "--use-rope-scaling": ROTARY,
    "--compress-ratios": f"--multi-latent-attention --kv-lora-rank 8 --enable-dsa-indexer --q-lora-rank 16 {ROTARY} "
    "--o-groups 2 --o-lora-rank 8",
    **dict.fromkeys(("--enable-mhc", "--enable-mhc-connections"), "--hidden-dropout 0"),
    "--n-hash-layers": "--num-experts 4 --moe-router-score-function sqrtsoftplus",
    "--loss-spike-action": "--loss-spike-deviations 3",
    "--yarn-correction-range-round-to-int": "--position-embedding-type yarn --no-yarn-correction-range-round-to-int",
    "--valid-data-path": "--train-data-path x",
    "--weight-decay-incr-style": "--start-weight-decay 0 --end-weight-decay 1",
    "--cpu-offload-params": "--zero-stage 3",
    "--fine-grained-activation-offloading": "--offload-modules core_attn",
    "--optimizer-offload-fraction": "--cpu-offload-optimizer",
}
"""Flag -> flags that it needs to act; `~x` takes flag `--x` out of the good line."""

WORLD_SIZE = 4


def value_of(config: AllConfig, target: str) -> Any:
    """The value at a field's path; None if it is unknown until files are read."""
    value = attrgetter(target)(config)
    return None if isinstance(value, Unknown) else value


def typed_values(row: Flag) -> Iterator[str]:
    """The texts of values to try behind a flag; "" for a switch."""
    if row.type is None:
        yield ""
        return
    count = row.nargs if isinstance(row.nargs, int) else 1
    words = [str(choice) for choice in row.choices if choice not in row.refuses] or WORDS
    yield from (" ".join([word] * count) for word in words)
    if row.nargs in ("+", "*"):
        yield from (f"{word} {word}" for word in words)


def effect(row: Flag, name: str, *targets: str) -> str | None:
    """A change of the good line with the flag by this name, accepted, on which all `targets` differ from those without
    the flag; None if no tried value gives one."""
    company = COMPANY.get(name, "")
    without = reading(company, WORLD_SIZE).config
    for value in typed_values(row):
        change = f"{company} {name} {value}".strip()
        found = reading(change, WORLD_SIZE)
        if not found.errors and all(value_of(found.config, t) != value_of(without, t) for t in targets):
            return change
    return None
