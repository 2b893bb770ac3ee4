"""Flags that act only beside another: accepted as Megatron accepts them, with a line that says why nothing happens."""

import pytest

from mapping.explain import outcomes
from mapping.flags import IGNORED, MAPPED
from parallel_core.config.no_effect import ROWS
from parallel_core.config.tree import path_of
from tests.support.mapping.lines import reading

WHOLE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

EXPERTS = "--num-experts 4 --moe-expert-capacity-factor 2"
NO_LOSS = "--num-experts 4 --moe-router-load-balancing-type"
SIGMOID = "--moe-router-score-function sigmoid"
SPARSE = "--multi-latent-attention --kv-lora-rank 8 --enable-dsa-indexer"
BIASED = f"{EXPERTS} --moe-router-score-function sigmoid --moe-router-enable-expert-bias"
IDLE = [
    *(
        (flag, "", SPARSE, "--experimental-attention-variant dsa")
        for flag in (
            *("--dsa-indexer-n-heads 2", "--dsa-indexer-head-dim 128", "--dsa-indexer-topk 9"),
            *("--dsa-indexer-loss-coeff 2", "--dsa-indexer-use-sparse-loss"),
        )
    ),
    ("--attention-dropout 0.2", SPARSE, "", "as in Megatron"),
    ("--disable-jit-fuser", "", "--kernels ops", "--kernels ops on a CPU"),
    ("--disable-jit-fuser", "--kernels ops --device-target Ascend", "--kernels ops", "--kernels ops on a CPU"),
    *(
        (flag, "", "--lora-target-modules linear_qkv", "--lora-target-modules")
        for flag in ("--lora-r 4", "--lora-alpha 8", "--lora-dropout 0.1", "--lora-load x")
    ),
    ("--moe-drop-rate-capacity-factor 2", EXPERTS, f"{EXPERTS} --moe-log-drop-rate", "--moe-log-drop-rate"),
    *(
        (flag, EXPERTS, f"{EXPERTS} --save-token-distribution", "--save-token-distribution")
        for flag in ("--summary-dir x", "--summary-collect-freq 5")
    ),
    (
        "--moe-router-bias-update-rate 0.1",
        EXPERTS,
        BIASED,
        "--moe-router-enable-expert-bias",
    ),
    (
        "--moe-router-bias-update-rate 0.1",
        f"{BIASED} --lora-target-modules linear_qkv",
        BIASED,
        "beside adapters",
    ),
    *(
        (flag, f"{NO_LOSS} {kind}", f"--num-experts 4 {beside}", "choose and weigh experts in their own way")
        for kind in ("sinkhorn", "sparsemixer_topk")
        for flag, beside in (
            ("--moe-router-score-function sigmoid", ""),
            ("--moe-router-pre-softmax", ""),
            ("--norm-topk-prob", "--moe-router-pre-softmax"),
            ("--moe-router-topk-scaling-factor 2", ""),
            ("--moe-router-num-groups 2", "--moe-router-group-topk 1"),
        )
    ),
    (
        "--moe-router-group-topk 1",
        f"{NO_LOSS} sinkhorn --moe-router-num-groups 2",
        "--num-experts 4 --moe-router-num-groups 2",
        "choose and weigh experts in their own way",
    ),
    *(
        (flag, f"{NO_LOSS} sinkhorn {biased}", f"--num-experts 4 {biased}", "choose and weigh experts in their own way")
        for flag, biased in (
            ("--moe-router-enable-expert-bias", SIGMOID),
            ("--moe-router-bias-update-rate 0.1", f"{SIGMOID} --moe-router-enable-expert-bias"),
        )
    ),
    *(
        (flag, "", f"--num-experts 4 {beside}", "--num-experts")
        for flag, beside in (("--moe-grouped-gemm", ""), ("--moe-per-layer-logging", ""))
    ),
    (
        "--moe-router-num-groups 2",
        "--num-experts 4",
        "--num-experts 4 --moe-device-level-aux-loss-coeff 0.1",
        "--moe-router-group-topk",
    ),
    (
        "--moe-router-group-score-topk 1",
        "--num-experts 4 --moe-router-num-groups 2",
        "--num-experts 4 --moe-router-num-groups 2 --moe-router-group-topk 1",
        "no group is chosen",
    ),
    *(
        ("--norm-topk-prob", f"--num-experts 4 {beside}", "--num-experts 4 --moe-router-pre-softmax", "sum to one")
        for beside in ("", SIGMOID, "--moe-router-pre-softmax --moe-router-topk 1")
    ),
    *(
        (
            flag,
            "--num-experts 4",
            "--num-experts 4 --moe-shared-expert-intermediate-size 8",
            "--moe-shared-expert-intermediate-size",
        )
        for flag in ("--moe-shared-expert-gate", "--moe-shared-expert-overlap")
    ),
    ("--enable-gmm-safe-tokens", "--num-experts 4", "--num-experts 4 --moe-grouped-gemm", "--moe-grouped-gemm"),
    (
        "--v-head-dim 8",
        "",
        "--multi-latent-attention --kv-lora-rank 16 --position-embedding-type rope",
        "--multi-latent-attention",
    ),
    *(
        ("--moe-aux-loss-coeff 0.1", f"{NO_LOSS} {kind}", "--num-experts 4", "--moe-router-load-balancing-type")
        for kind in ("none", "sparsemixer_topk")
    ),
    (
        "--moe-pad-expert-input-to-capacity",
        f"{EXPERTS} --moe-token-dispatcher-type allgather",
        f"{EXPERTS} --moe-token-dispatcher-type alltoall",
        "--moe-token-dispatcher-type alltoall",
    ),
    ("--moe-token-drop-policy position", "--num-experts 4", EXPERTS, "--moe-expert-capacity-factor"),
    *(
        (
            flag,
            "--num-experts 4",
            "--num-experts 4 --moe-expert-capacity-factor 2 --hot-expert-num 1",
            "--hot-expert-num",
        )
        for flag in ("--cold-token-percent 0.5", "--hot-expert-update-step 5")
    ),
    *(
        (flag, "", "--optimizer muon", "--optimizer muon")
        for flag in (
            "--muon-momentum 0.8",
            "--muon-nesterov",
            "--muon-scale-mode unit_rms_norm",
            "--muon-extra-scale-factor 0.2",
            "--muon-num-ns-steps 3",
            "--muon-coefficient-type simple",
            "--muon-fp32-matmul-prec high",
            "--muon-tp-mode blockwise",
            "--muon-no-split-qkv",
        )
    ),
    ("--pma-fused-num 3", "", "--pma-fused-algo sma", "--pma-fused-algo"),
    ("--pma-interleave-step 3", "", "--optimizer PmAdamW", "--pma-fused-algo"),
    ("--pma-ema-alpha 0.5", "--pma-fused-algo sma", "--pma-fused-algo ema", "--pma-fused-algo ema"),
    ("--sgd-momentum 0.5", "", "--optimizer sgd", "--optimizer sgd"),
    ("--adam-eps 1e-5", "--optimizer sgd", "--optimizer muon", "--optimizer sgd"),
    ("--adam-beta1 0.8", "--optimizer sgd", "", "--optimizer sgd"),
    ("--adam-beta2 0.8", "--optimizer sgd", "", "--optimizer sgd"),
    ("--no-adam-bias-correction", "--optimizer sgd", "", "--optimizer sgd"),
    ("--no-decoupled-weight-decay", "--optimizer sgd", "", "--optimizer sgd"),
    ("--lr-wsd-decay-iters 2", "", "--lr-decay-style WSD", "--lr-decay-style WSD"),
    (
        "--lr-wsd-decay-samples 2",
        "~train-iters --train-samples 80",
        "~train-iters --train-samples 80 --lr-decay-style WSD",
        "--lr-decay-style WSD",
    ),
    (
        "--lr-wsd-decay-style linear",
        "",
        "--lr-decay-style WSD --lr-wsd-decay-iters 2",
        "--lr-decay-style WSD",
    ),
    (
        "--window-attn-skip-freq 2",
        "",
        "--sliding-window 8",
        "--sliding-window or --window-size",
    ),
    *(
        (flag, "", f"--position-embedding-type rope {layers} 1", "--mtp-num-layers")
        for flag, layers in (
            ("--mtp-loss-scaling-factor 0.3", "--mtp-num-layers"),
            ("--mtp-loss-scale 0.5", "--num-nextn-predict-layers"),
            ("--share-mtp-embedding-and-output-weight", "--num-nextn-predict-layers"),
        )
    ),
    ("--hot-expert-update-step 5", "--num-experts 4", "--num-experts 4 --hot-expert-num 1", "--hot-expert-num"),
    ("--pre-tockens 8", "--sparse-mode 2", "--sparse-mode 4", "--sparse-mode"),
    ("--lr-warmup-init 1e-4", "", "--lr-warmup-iters 2", "--lr-warmup-iters"),
    ("--lr-warmup-style log", "--lr-warmup-fraction 0", "--lr-warmup-fraction 0.2", "--lr-warmup-fraction"),
    ("--apply-wd-to-qk-layernorm", "", "--qk-layernorm", "--qk-layernorm"),
    ("--no-weight-decay-cond-type apply_wd_to_qk_layernorm", "", "--qk-layernorm", "--qk-layernorm"),
    ("--ddp-bucket-size 4096", "", "--overlap-grad-reduce", "--overlap-grad-reduce"),
    (
        "--ddp-bucket-size 4096",
        "--overlap-grad-reduce --zero-stage 2",
        "--overlap-grad-reduce --zero-stage 1",
        "--zero-stage",
    ),
    ("--grad-reduce-in-bf16", "--fp16", "--bf16", "--bf16"),
    ("--accumulate-allreduce-grads-in-fp32", "--bf16 --grad-reduce-in-bf16", "--fp16", "--grad-reduce-in-bf16 counts"),
    (
        "--main-grads-dtype bf16",
        "--use-precision-aware-optimizer",
        "--use-precision-aware-optimizer --bf16",
        "--bf16",
    ),
    ("--cpu-offload-params", "--zero-stage 3", "--zero-stage 3 --device-target Ascend", "on a CPU"),
    (
        "--cpu-offload-optimizer",
        "--optimizer-offload-fraction 0",
        "--optimizer-offload-fraction 0.5",
        "--optimizer-offload-fraction 0",
    ),
    ("--nvme-path x", "--optimizer-offload-fraction 0", "", "--optimizer-offload-fraction 0"),
    ("--swap-modules mlp", "", "--swap-attention", "--swap-attention"),
    (
        "--offload-modules core_attn",
        "",
        "--fine-grained-activation-offloading",
        "--fine-grained-activation-offloading",
    ),
    (
        "--min-offloaded-tensor-size 1",
        "",
        "--fine-grained-activation-offloading --offload-modules core_attn",
        "--fine-grained-activation-offloading",
    ),
    (
        "--recompute-method block",
        "",
        "--recompute-granularity full --recompute-num-layers 1",
        "--recompute-granularity full",
    ),
    (
        "--recompute-num-layers 1",
        "",
        "--recompute-granularity full --recompute-method block",
        "--recompute-granularity full",
    ),
    ("--recompute-num-layers 2", "--recompute True", "--recompute True --recompute-method uniform", "full"),
    ("--recompute-modules mlp", "", "--recompute-granularity selective", "--recompute-granularity selective"),
    ("--recompute-modules mlp", WHOLE, None, "--recompute-granularity selective"),
    ("--recompute-norm-num-layers 1", "", "--recompute-norm", "--recompute-norm"),
    (
        "--recompute-mla-up-proj",
        "",
        "--multi-latent-attention --kv-lora-rank 16 --position-embedding-type rope",
        "--multi-latent-attention",
    ),
    (
        "--recompute-activation-function-num-layers 1",
        "",
        "--recompute-activation-function",
        "--recompute-activation-function",
    ),
    ("--select-recompute-exclude True", "--kernels ops", "", "--select-recompute"),
    *(
        (flag, WHOLE, WHOLE.replace("uniform", "block"), "computed again whole")
        for flag in (
            "--recompute-norm",
            "--recompute-activation-function",
            "--swap-attention",
            "--cpu-offloading-num-layers 1",
        )
    ),
    ("--swap-modules mlp", f"--swap-attention {WHOLE}", "--swap-attention", "computed again whole"),
]
"""A flag, beside what it does nothing, beside what it acts, and what the line about it names."""


def outcome_of(flag: str, company: str) -> tuple[str, str]:
    """Whether a flag acts in company, and why not."""
    found = reading(f"{company} {flag}")
    assert found.errors == []
    name = flag.split()[0]
    return next((outcome.status, outcome.reason) for outcome in outcomes(found) if outcome.flag == name)


@pytest.mark.parametrize(("flag", "alone", "beside", "named"), IDLE, ids=lambda value: value)
def test_a_flag_that_does_nothing_says_so_and_acts_where_it_does(flag, alone, beside, named):
    status, reason = outcome_of(flag, alone)
    assert status == IGNORED and reason.startswith("no effect: ") and named in reason
    assert beside is None or outcome_of(flag, beside) == (MAPPED, "")


def test_a_number_of_dense_layers_does_nothing_beside_the_list_of_layers():
    """Both say which layers have experts; the list says it whole."""
    status, reason = outcome_of("--first-k-dense-replace 1", "--num-experts 4 --moe-layer-freq [1,0,1,1]")
    assert status == IGNORED and reason.startswith("no effect: ") and "--moe-layer-freq" in reason
    assert outcome_of("--first-k-dense-replace 1", "--num-experts 4 --moe-layer-freq 1") == (MAPPED, "")
    assert outcome_of("--moe-layer-freq [1,0,1,1]", "--num-experts 4 --first-k-dense-replace 1") == (MAPPED, "")


def test_sharing_an_embedding_says_nothing_beside_layers_that_share_it_anyway():
    """The flag is MindSpeed-LLM's, about its own layers; Megatron's have nothing of their own."""
    flag, rotary = "--share-mtp-embedding-and-output-weight", "--position-embedding-type rope"
    status, reason = outcome_of(flag, f"{rotary} --mtp-num-layers 1")
    assert status == IGNORED and reason.startswith("no effect: ") and "--mtp-num-layers" in reason
    assert outcome_of(flag, f"{rotary} --num-nextn-predict-layers 1") == (MAPPED, "")


def test_every_row_has_a_case():
    """Of its options at least one does nothing by its reason."""
    said = {outcome_of(flag, alone)[1].removeprefix("no effect: ") for flag, alone, _, _ in IDLE}
    assert said == {row.reason for row in ROWS}


def test_the_line_is_printed(capsys):
    """Beside the others that are said before training begins."""
    reading("--muon-momentum 0.8").print_notes()
    assert "ignored: --muon-momentum: no effect: needs --optimizer muon" in capsys.readouterr().out


def test_rows_name_options():
    assert all(path_of(name) for row in ROWS for name in row.options)
