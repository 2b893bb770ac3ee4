"""Flags that act only beside another: accepted, as Megatron accepts them, with a line that says why they do nothing."""

import pytest

from mapping.explain import outcomes
from mapping.flags import BY_NAME, IGNORED, MAPPED
from mapping.flags import ROWS as FLAGS
from parallel_core.no_effect import ROWS
from tests.support.families import BESIDE
from tests.support.mapping.lines import reading

WHOLE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"

EXPERTS = "--num-experts 4 --moe-expert-capacity-factor 2"
NO_LOSS = "--num-experts 4 --moe-router-load-balancing-type"
EP2 = "--num-experts 4 --expert-model-parallel-size 2"
SIGMOID = "--moe-router-score-function sigmoid"
SPARSE = "--multi-latent-attention --kv-lora-rank 8 --enable-dsa-indexer"
DELTA = "--experimental-attention-variant gated_delta_net --linear-attention-freq 2"
LIGHTNING = "--experimental-attention-variant lightning_attention --linear-attention-freq 2"
BIASED = f"{EXPERTS} --moe-router-score-function sigmoid --moe-router-enable-expert-bias"
LATENT = "--multi-latent-attention --kv-lora-rank 16"
RAW = "--train-data-path x"
TALKS = "--is-instruction-dataset --data-path x"
ROTARY = "--position-embedding-type rope"
COMPRESSED = f"{SPARSE} --q-lora-rank 16 --compress-ratios 0 4 128 4 {ROTARY} --o-groups 2 --o-lora-rank 8"
SCALED = f"{ROTARY} --rope-scaling-type"
SHORT = "--original-max-position-embeddings 16"
LONG = f"{SCALED} longrope --long-factor 1,1,1,1,1,1,1,1 --short-factor 1,1,1,1,1,1,1,1 {SHORT}"
RMS = "--normalization RMSNorm"
PP2 = "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights"
ZERO_BUBBLE_V = "--zero-bubble-v-schedule"
IN_8_BITS = "--fp8-simulate --fp8-format hybrid --fp8-recipe"
IDLE = [
    ("--no-resume-training", "", "--load x", "--load"),
    ("--delay-grad-reduce", "", "--overlap-grad-reduce", "--overlap-grad-reduce"),
    ("--zero-bubble-v-schedule-mem-setup half", PP2, f"{PP2} {ZERO_BUBBLE_V}", "--zero-bubble-v-schedule"),
    ("--enable-zero-bubble", f"{PP2} {ZERO_BUBBLE_V}", PP2, "--zero-bubble-v-schedule"),
    ("--zero-bubble-max-pending-backward 4", PP2, f"{PP2} --enable-zero-bubble", "--enable-zero-bubble"),
    (
        "--use-mp-args-from-checkpoint-args",
        "",
        "--use-checkpoint-args --load not/saved/yet --save not/saved/yet --save-interval 4",
        "--use-checkpoint-args",
    ),
    *(
        (flag, "", SPARSE, "--experimental-attention-variant dsa")
        for flag in (
            *("--dsa-indexer-n-heads 2", "--dsa-indexer-head-dim 128", "--dsa-indexer-topk 9"),
            *("--dsa-indexer-loss-coeff 2", "--dsa-indexer-use-sparse-loss"),
        )
    ),
    ("--attention-dropout 0.2", SPARSE, "", "as in Megatron"),
    ("--sliding-window-size 8", "", COMPRESSED, "no compressed entries"),
    ("--attention-dropout 0.2", COMPRESSED, "", "--compress-ratios"),
    ("--hc-mult 2", "", "--enable-mhc --hidden-dropout 0", "--enable-mhc"),
    ("--qk-clip-threshold 9", "", "--qk-clip", "needs --qk-clip"),
    ("--log-max-attention-logit", "--qk-clip", "", "--qk-clip"),
    ("--index-share-for-mtp-iteration", SPARSE, f"{SPARSE} --mtp-num-layers 2 {ROTARY}", "a single layer"),
    ("--index-topk-freq 2", f"{SPARSE} --index-topk-pattern FSFS", SPARSE, "--index-topk-pattern"),
    ("--linear-attention-residual-weights 2 1", DELTA, LIGHTNING, "lightning_attention"),
    ("--enable-mla-scale-q-lora", LATENT, f"{LATENT} --q-lora-rank 8", "needs --q-lora-rank"),
    (
        "--mamba-d-conv 3",
        "--experimental-attention-variant gated_delta_net --linear-attention-freq 2",
        "--full-attention-interval 2",
        "--linear-conv-kernel-dim",
    ),
    *(
        (flag, "", f"--is-hybrid-model {groups}", "no layer is a state space")
        for flag, groups in (
            *((flag, "--mamba-num-groups 1") for flag in ("--mamba-d-conv 3", "--mamba-state-dim 8")),
            *(("--mamba-head-dim 16", "--mamba-num-groups 1"), ("--mamba-num-groups 4", "--mamba-num-heads 8")),
            ("--mamba-num-heads 16", ""),
        )
    ),
    ("--attention-dropout 0.2", "--is-hybrid-model --mamba-num-groups 1", "", "no layer has attention"),
    ("--side-by-side-weights 2 1", "--is-hybrid-model --mamba-num-groups 1", f"{BESIDE} HHHH", "has no H"),
    *(
        (flag, "", "--experimental-attention-variant gated_delta_net --linear-attention-freq 2", "gated_delta_net")
        for flag in (
            *("--linear-attention-freq 2", "--linear-conv-kernel-dim 3", "--linear-key-head-dim 8"),
            *("--linear-value-head-dim 8", "--linear-num-key-heads 8", "--linear-num-value-heads 16"),
        )
    ),
    *(
        (flag, "", "--lora-target-modules linear_qkv", "--lora-target-modules")
        for flag in ("--lora-r 4", "--lora-alpha 8", "--lora-dropout 0.1", "--lora-load x", "--qlora")
    ),
    ("--moe-drop-rate-capacity-factor 2", EXPERTS, f"{EXPERTS} --moe-log-drop-rate", "--moe-log-drop-rate"),
    *(
        (flag, EXPERTS, f"{EXPERTS} --save-token-distribution", "--save-token-distribution")
        for flag in ("--summary-dir x", "--summary-collect-freq 5")
    ),
    ("--moe-router-enable-expert-bias", EXPERTS, f"{EXPERTS} {SIGMOID}", "scores of all experts"),
    ("--qk-layernorm-after-rope", "--qk-layernorm", f"--qk-layernorm {ROTARY}", "not turned as a whole"),
    ("--qat-scheme w4a16-mxfp4-moe-only", "", EXPERTS, "no experts"),
    ("--fp8-format e4m3", "", "--fp8-simulate", "--fp8-simulate rounds as 8 bits do"),
    ("--fp8-margin 1", f"{IN_8_BITS} tensorwise", f"{IN_8_BITS} delayed", "--fp8-recipe delayed"),
    (
        "--num-layers-at-end-in-bf16 2",
        f"{IN_8_BITS} mxfp8",
        f"{IN_8_BITS} mxfp8 --first-last-layers-bf16",
        "--first-last-layers-bf16",
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
        "--moe-router-group-topk",
    ),
    *(
        ("--norm-topk-prob", f"--num-experts 4 {beside}", "--num-experts 4 --moe-router-pre-softmax", "sum to one")
        for beside in ("", SIGMOID, "--moe-router-pre-softmax --moe-router-topk 1")
    ),
    *(
        (
            flag,
            "--num-experts 4",
            "--num-experts 4 --moe-shared-expert-intermediate-size 8 --expert-model-parallel-size 2",
            "--moe-shared-expert-intermediate-size",
        )
        for flag in ("--moe-shared-expert-gate", "--moe-shared-expert-overlap")
    ),
    ("--delay-wgrad-compute", EP2, f"{EP2} --overlap-moe-expert-parallel-comm", "--overlap-moe-expert-parallel-comm"),
    *(
        ("--overlap-moe-expert-parallel-comm", beside, EP2, reason)
        for beside, reason in (
            ("--num-experts 4", "--expert-model-parallel-size 2"),
            (f"{EP2} {WHOLE}", "computed again"),
            (f"{EP2} --pipeline-schedule gpipe", "--pipeline-schedule"),
        )
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
            EXPERTS,
            f"{EXPERTS} --hot-expert-num 1 {beside}",
            "--hot-expert-num",
        )
        for flag, beside in (
            ("--cold-token-percent 0.5", ""),
            ("--hot-expert-update-step 5", "--cold-token-percent 0.5"),
        )
    ),
    *(
        (flag, EXPERTS, f"{EXPERTS} {company}", "--cold-token-percent")
        for company in ("--cold-token-percent 0.5", "--expert-model-parallel-size 2")
        for flag in ("--hot-expert-num 1",)
    ),
    ("--position-embedding-type none", LATENT, "", "in any case"),
    ("--deterministic-mode", "", "--device-target Ascend", "a CPU"),
    (
        "--overlap-param-gather",
        "--use-distributed-optimizer --overlap-grad-reduce --tensor-model-parallel-size 4",
        "--use-distributed-optimizer --overlap-grad-reduce",
        "one replica",
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
    ("--lion-beta1 0.9", "", "--optimizer lion", "--optimizer lion"),
    ("--lion-beta2 0.9", "", "--optimizer lion", "--optimizer lion"),
    ("--adam-eps 1e-5", "--optimizer sgd", "--optimizer muon", "--optimizer adam or muon"),
    ("--adam-beta1 0.8", "--optimizer sgd", "", "--optimizer adam or muon"),
    ("--adam-beta2 0.8", "--optimizer sgd", "", "--optimizer adam or muon"),
    ("--no-adam-bias-correction", "--optimizer sgd", "", "--optimizer adam or muon"),
    ("--no-decoupled-weight-decay", "--optimizer sgd", "", "--optimizer adam or muon"),
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
        "--sliding-window",
    ),
    *(
        (flag, "", f"--position-embedding-type rope {layers} 1", "--mtp-num-layers")
        for flag, layers in (
            ("--mtp-loss-scaling-factor 0.3", "--mtp-num-layers"),
            ("--mtp-loss-scale 0.5", "--num-nextn-predict-layers"),
            ("--share-mtp-embedding-and-output-weight", "--num-nextn-predict-layers"),
        )
    ),
    ("--pre-tockens 8", "--sparse-mode 2", "--sparse-mode 4", "--sparse-mode"),
    ("--lr-warmup-init 1e-4", "", "--lr-warmup-iters 2", "--lr-warmup-iters"),
    ("--lr-warmup-style log", "--lr-warmup-fraction 0", "--lr-warmup-fraction 0.2", "--lr-warmup-fraction"),
    ("--apply-wd-to-qk-layernorm", "", "--qk-layernorm", "--qk-layernorm"),
    ("--no-weight-decay-cond-type apply_wd_to_qk_layernorm", "", "--qk-layernorm", "--qk-layernorm"),
    ("--max_train_samples 80", "--train-iters 10", "--train-iters 11", "no more samples"),
    ("--tensorboard-queue-size 2", "", "--tensorboard-dir x", "--tensorboard-dir"),
    ("--tensorboard-log-interval 2", "", "--swanlab-project x", "or another writer"),
    ("--wandb-entity x", "", "--wandb-project x --wandb-exp-name y", "--wandb-project"),
    ("--log-throughput", "", "--tensorboard-dir x --log-timers-to-tensorboard", "--log-timers-to-tensorboard"),
    (
        "--log-validation-ppl-to-tensorboard",
        "--tensorboard-dir x --eval-iters 0",
        "--tensorboard-dir x --eval-iters 1 --eval-interval 1",
        "--eval-iters",
    ),
    ("--timing-log-option max", "", "--timing-log-level 1", "--timing-log-level"),
    ("--straggler-minmax-count 2", "", "--log-straggler", "--log-straggler"),
    ("--record-step-end 3", "", "--record", "--record"),
    ("--profile-memory", "", "--profile --kernels ops", "--profile"),
    ("--profile-ranks 1", "", "--trace", "--trace"),
    ("--profile-with-stack", "--profile", "--profile --kernels ops", "--kernels ops"),
    ("--profile", "--kernels ops --profile-step-start 10 --profile-step-end 12", "--kernels ops", "--profile-step"),
    (
        "--profile-step-end 3",
        "--profile --device-target Ascend --profile-dynamic-profiler-config-path x",
        "--profile --device-target Ascend",
        "--profile-dynamic-profiler-config-path",
    ),
    ("--ddp-bucket-size 4096", "--no-wrap-with-ddp", "", "--no-wrap-with-ddp"),
    (
        "--ddp-bucket-size 4096",
        "--overlap-grad-reduce --zero-stage 2",
        "--overlap-grad-reduce --zero-stage 1",
        "--zero-stage",
    ),
    ("--no-parallel-optimizer-comm-recompute", "--zero-stage 2", "--zero-stage 3", "--zero-stage 3"),
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
    ("--recompute-norm-num-layers 1", "", "--recompute-norm --kernels ops", "--recompute-norm"),
    (
        "--recompute-mla-up-proj",
        "",
        "--multi-latent-attention --kv-lora-rank 16 --position-embedding-type rope",
        "--multi-latent-attention",
    ),
    (
        "--recompute-activation-function-num-layers 1",
        "",
        "--recompute-activation-function --kernels ops",
        "--recompute-activation-function",
    ),
    ("--select-recompute-exclude True", "", None, "the same is computed again"),
    ("--select-recompute-exclude ['.*_layernorm']", "--kernels ops", "", "the same is computed again"),
    ("--recompute-norm", "", "--kernels ops", "the same is computed again"),
    ("--no-mp-comm-recompute", "", "--tensor-model-parallel-size 2 --recompute True", "the same is computed again"),
    (
        "--select-comm-recompute False",
        "--tensor-model-parallel-size 2 --recompute True",
        None,
        "needs --no-mp-comm-recompute",
    ),
    (
        "--enable-recompute-layers-per-pp-rank",
        WHOLE.replace("uniform", "block"),
        f"{WHOLE.replace('uniform', 'block')} --pipeline-model-parallel-size 2 "
        "--num-virtual-stages-per-pipeline-rank 2",
        "--virtual-pipeline-model-parallel-size",
    ),
    *(
        (
            flag,
            f"{WHOLE} --kernels ops",
            f"{WHOLE.replace('uniform', 'block')} --kernels ops",
            "the same is computed again",
        )
        for flag in (
            "--recompute-norm",
            "--recompute-activation-function",
            "--swap-attention",
            "--cpu-offloading-num-layers 2",
        )
    ),
    ("--swap-modules mlp", f"--swap-attention {WHOLE}", "--swap-attention", "the same is computed again"),
    ("--num-query-groups 2", "", "--group-query-attention", "--group-query-attention"),
    ("--attn-post-norm-scale 0.5", "", "--use-sandwich-norm", "--use-sandwich-norm"),
    ("--latent-norm-epsilon 1e-3", LATENT, f"{LATENT} --qk-layernorm", "--qk-layernorm"),
    ("--kv-channels 8", LATENT, "", "latent attention's heads"),
    ("--ffn-hidden-size 32", "--num-experts 4 --moe-ffn-hidden-size 64", "", "--moe-ffn-hidden-size"),
    ("--no-bias-gelu-fusion", "--swiglu", "", "--hidden-act gelu"),
    ("--fc-type up_down", "--squared-relu", "--swiglu", "only --swiglu"),
    ("--train-data-path a", "--data-path a", "", "goes before it"),
    ("--rotary-base 500", "", ROTARY, "--position-embedding-type rope"),
    ("--rotary-percent 0.5", LATENT, ROTARY, "latent attention's positions"),
    ("--rope-scaling-factor 4", ROTARY, f"{SCALED} llama3", "--rope-scaling-type"),
    ("--low-freq-factor 2", f"{SCALED} yarn", f"{SCALED} llama3", "--rope-scaling-type llama3"),
    ("--beta-fast 16", f"{SCALED} llama3", f"{SCALED} yarn", "--rope-scaling-type yarn"),
    ("--mscale-all-dim 1", f"{SCALED} llama3", f"{SCALED} yarn", "--rope-scaling-type yarn"),
    ("--long-factor 1,1,1,1,1,1,1,2", f"{SCALED} yarn", LONG, "--rope-scaling-type longrope"),
    ("--rope-scaling-factor 4", LONG, f"{SCALED} yarn", "--long-factor and --short-factor"),
    ("--short-mscale 2", LONG, f"{LONG} --original-max-position-embeddings 64", "are longer"),
    ("--long-mscale 2", f"{LONG} --original-max-position-embeddings 64", LONG, "no longer"),
    ("--rope-scaling-factor 4", f"{SCALED} dynamic", f"{SCALED} dynamic {SHORT}", "no longer"),
    ("--beta-fast 16", f"{SCALED} yarn --rope-scaling-factor 1", f"{SCALED} yarn", "a factor of 1"),
    ("--sparse-mode 2", "", "--pre-tockens 8", "leaves out no token"),
    ("--moe-router-pre-softmax", f"--num-experts 4 {SIGMOID}", "--num-experts 4", "sigmoid"),
    ("--moe-router-dtype fp32", "--num-experts 4", "--num-experts 4 --bf16", "float32 already"),
    (
        "--moe-token-dispatcher-type alltoall",
        "--num-experts 4",
        "--num-experts 4 --expert-model-parallel-size 2",
        "--expert-model-parallel-size",
    ),
    ("--sequence-parallel", "", "--tensor-model-parallel-size 2", "--tensor-model-parallel-size"),
    ("--unaligned-linear", "", "--ffn-hidden-size 65 --tensor-model-parallel-size 2", "--tensor-model-parallel-size"),
    *(
        (flag, "", "--context-parallel-size 2", "--context-parallel-size")
        for flag in ("--context-parallel-algo ulysses_cp_algo", "--cp-comm-type a2a")
    ),
    ("--variable-seq-lengths", "", "--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size"),
    ("--use-tp-pp-dp-mapping", "", "--pipeline-model-parallel-size 2", "whose order"),
    ("--overlap-grad-reduce", "--tensor-model-parallel-size 4", "", "one replica"),
    ("--ddp-average-in-collective", "", "--fp16", "exactly"),
    ("--accumulate-allreduce-grads-in-fp32", "--bf16", "--fp16", "float32 in any case"),
    ("--use-flash-attn", "", "--kernels ops", "keeps no scores"),
    ("--no-rope-fusion", ROTARY, f"{ROTARY} --device-target Ascend", "a CPU"),
    ("--shape-order BSH", "--device-target Ascend", "--device-target Ascend --use-flash-attn", "--use-flash-attn"),
    ("--hysteresis 2", "", "--fp16", "float32 gradients"),
    ("--hysteresis 3", "--fp16 --loss-scale 128", "--fp16", "fixed"),
    ("--hysteresis 3", "--bf16", "--fp16", "bfloat16"),
    ("--max-scale-window 2000", "--fp16", "--fp16 --adaptive-loss-scale", "--adaptive-loss-scale"),
    ("--loss-scale-factor 4", "--fp16 --loss-scaler deepspeed", "--fp16", "doubles and halves"),
    ("--hysteresis 3", "--fp16 --adaptive-loss-scale", "--fp16", "shrinks"),
    ("--ckpt-format torch", "", "--save x --save-interval 4", "--save"),
    ("--model-type-hf gpt2", "", "--save x --save-interval 4 --enable-mg2hf-convert", "--enable-mg2hf-convert"),
    ("--finetune", "", "--load x", "--load"),
    ("--no-use-tokenizer-model-from-checkpoint-args", "", None, "--use-checkpoint-args"),
    ("--eval-interval 2", "--eval-iters 0", "", "--eval-iters"),
    ("--profile-level level1", "", "--profile --kernels ops", "--profile"),
    ("--prompt-type qwen", "", None, "--is-instruction-dataset"),
    ("--dataset MMAP", "", None, "indexed files"),
    ("--max-padding-length 8", "", f"{RAW} --dataset LLama-SFT-Raw", "--dataset"),
    ("--split 90,10,0", f"{RAW} --dataset LLama-SFT-Raw", "", "a file of its own"),
    ("--eod-mask-loss", f"{RAW} --dataset LLama-SFT-Raw", "", "padding"),
    ("--mup-embedding-mult 2", "", "--use-mup", "--use-mup"),
    ("--fsdp2-config-path not/there.yaml", "--use-torch-fsdp2", None, "no such file"),
    ("--no-create-attention-mask-in-dataloader", "", "--reset-attention-mask", "--reset-attention-mask"),
    ("--neat-pack", TALKS, f"{TALKS} --reset-attention-mask", "--reset-attention-mask"),
    ("--fix-sub-seq-length 8", TALKS, f"{TALKS} --reset-attention-mask", "--reset-attention-mask"),
    (
        "--neat-pack",
        f"{TALKS} --reset-attention-mask --fix-sub-seq-length 8",
        f"{TALKS} --reset-attention-mask",
        "--fix-sub-seq-length",
    ),
    ("--eos-token-id 3", "", "--eod-mask-loss", "--eod-mask-loss"),
    ("--reset-position-ids", ROTARY, "", "learned_absolute"),
    ("--vocab-file x", "--tokenizer-type NullTokenizer", None, "NullTokenizer"),
    ("--tokenizer-kwargs padding_side left", "", None, "--tokenizer-type HuggingFaceTokenizer"),
    ("--tiktoken-pattern v1", "", None, "--tokenizer-type TikTokenizer"),
    ("--tokenizer-special-tokens <a>", "", None, "--tokenizer-type HuggingFaceTokenizer"),
    ("--tokenizer-sentencepiece-legacy", "", None, "--tokenizer-type GPTSentencePieceTokenizer"),
    ("--vocab-extra-ids 100", "", None, "--tokenizer-type SentencePieceTokenizer"),
    ("--null-tokenizer-eod-id 3", "--tokenizer-type TikTokenizer --tokenizer-model x", None, "NullTokenizer"),
    ("--sft-tokenizer-prompt-format identity", "", None, "--tokenizer-type SFTTokenizer"),
    ("--no-data-sharding", "", "--dataloader-type cyclic", "--dataloader-type cyclic"),
    ("--use-precision-aware-optimizer", "", "--o2-optimizer", "--exp-avg-dtype"),
    ("--share-mtp-embedding-and-output-weight", f"{ROTARY} --mtp-num-layers 1", None, "--mtp-num-layers"),
    ("--model_name_or_path x", "--resume_from_checkpoint y", None, "--resume_from_checkpoint"),
    ("--position-embedding-type learned_absolute", "--use-rotary-position-embeddings", "", "--use-rotary-position-emb"),
    ("--make-vocab-size-divisible-by 8", "--padded-vocab-size 512", "", "--padded-vocab-size"),
    ("--patch-tokenizer-type Qwen2Tokenizer", "--tokenizer-type NullTokenizer", "--load x", "--tokenizer-type"),
    ("--use-rope-scaling", f"{LATENT} --rotary-scaling-factor 4", ROTARY, "--rope-type"),
    (
        "--rope-scaling-factor 4",
        f"{LATENT} --rotary-scaling-factor 4",
        f"{LATENT} --rope-scaling-type yarn",
        "--rotary-scaling-factor",
    ),
    ("--rotary-scaling-factor 4", f"{LATENT} --rope-scaling-type yarn", LATENT, "--rope-scaling-factor"),
    ("--rotary-base 500", f"{ROTARY} --spec hunyuan_spec layer_spec", ROTARY, "base of its own"),
    ("--use-fused-rmsnorm", RMS, f"{RMS} --device-target Ascend", "RMSNorm"),
    (
        "--no-rope-fusion",
        f"{ROTARY} --device-target Ascend --use-fused-rotary-pos-emb",
        f"{ROTARY} --device-target Ascend",
        "--use-fused-rotary-pos-emb",
    ),
    (
        "--moe-train-capacity-factor 2",
        "--num-experts 4",
        "--num-experts 4 --moe-model-type deepspeed_moe",
        "deepspeed_moe",
    ),
    ("--first-k-dense-replace 1", "--num-experts 4 --moe-layer-freq [1,0,1,1]", "--num-experts 4", "--moe-layer-freq"),
    ("--seq-aux", "--num-experts 4 --moe-router-load-balancing-type none", "--num-experts 4", "an auxiliary loss"),
    ("--input-jitter", "--num-experts 4", "--num-experts 4 --moe-input-jitter-eps 0.1", "--moe-input-jitter-eps"),
    ("--moe-input-jitter-eps 0.1", "--num-experts 4 --input-jitter", "--num-experts 4", "--input-jitter"),
    (
        "--moe-tp-extend-ep",
        "--num-experts 4",
        "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel",
        "--tensor-model-parallel-size",
    ),
    (
        "--expert-tensor-parallel-size 2",
        "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel --moe-tp-extend-ep",
        "--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel",
        "--moe-tp-extend-ep",
    ),
]
"""(flag, flags beside which it does nothing, flags beside which it acts or None, what the reason names)."""


def outcome_of(flag: str, company: str) -> tuple[str, str]:
    """(status, reason) of `flag` beside `company` on four processes."""
    found = reading(f"{company} {flag}", world_size=4)
    assert found.errors == []
    name = flag.split()[0]
    return next((outcome.status, outcome.reason) for outcome in outcomes(found) if outcome.flag == name)


@pytest.mark.parametrize(("flag", "alone", "beside", "named"), IDLE, ids=lambda value: value)
def test_a_flag_that_does_nothing_says_so_and_acts_where_it_does(flag, alone, beside, named):
    """Each flag of `IDLE` is ignored with its reason beside the one company and mapped beside the other."""
    status, reason = outcome_of(flag, alone)
    assert status == IGNORED and reason.startswith("no effect: ") and named in reason
    assert beside is None or outcome_of(flag, beside) == (MAPPED, "")


def test_every_row_has_a_case():
    """Each row of the table of idle options has a case in `IDLE`."""
    said = {outcome_of(flag, alone)[1].removeprefix("no effect: ") for flag, alone, _, _ in IDLE}
    assert said == {row.reason for row in ROWS} | {row.idle[1] for row in FLAGS if row.idle}


def test_the_line_is_printed(capsys):
    """The line about an idle flag is printed with the other notes before training."""
    reading("--muon-momentum 0.8").print_notes()
    assert "ignored: --muon-momentum: no effect: needs --optimizer muon" in capsys.readouterr().out


def test_rows_name_options_and_flags():
    """Each row of the table names options, and flags that exist."""
    assert all(row.paths for row in ROWS) and all(name in BY_NAME for row in FLAGS for name in row.completes)
