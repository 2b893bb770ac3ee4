"""Every rule about flags: a bad command line is refused by one finding about the flag at fault, and near misses
pass."""

from __future__ import annotations

import pytest

from tests.support.mapping.lines import reading

LATENT = "--multi-latent-attention --kv-lora-rank 8"
SHARED_KEYS = (
    f"{LATENT} --q-lora-rank 8 --experimental-attention-variant dsa --dsa-indexer-loss-coeff 1 "
    "--dsa-indexer-topk-freq 2"
)
DELTA = (
    "--experimental-attention-variant gated_delta_net --linear-attention-freq 2 --linear-num-key-heads 2 "
    "--linear-num-value-heads 4"
)
TOO_MANY = "--moe-router-topk 3"
OF_EXPERTS = "must be a multiple of --expert-tensor-parallel-size"
OF_DENSE = "must be a multiple of --tensor-model-parallel-size"
BAD = [
    # the command line itself
    ("--num-layer 4", 1, "--num-layer"),
    ("--no-such-flag 3", 1, "--no-such-flag"),
    ("--bf16 stray", 1, "--bf16 stray"),
    ("--bf16 true", 1, "--bf16 true"),
    ("--seed", 1, "--seed"),
    ("--seed 1 2", 1, "--seed 2"),
    ("--lr abc", 1, "--lr abc"),
    ("--num-layers 4.0", 1, "--num-layers 4.0"),
    ("--lr nan", 1, "--lr nan"),
    ("--lr inf", 1, "--lr inf"),
    ("--normalization BatchNorm", 1, "--normalization BatchNorm"),
    ("--rampup-batch-size 2 2", 1, "--rampup-batch-size 2 2"),
    # required flags
    ("~num-layers", 1, "--num-layers"),
    ("~hidden-size", 1, "--hidden-size"),
    ("~num-attention-heads", 1, "--num-attention-heads"),
    ("~seq-length", 1, "--seq-length"),
    ("~micro-batch-size", 1, "--micro-batch-size"),
    ("~train-iters", 1, "--train-iters or --train-samples or --num_train_epochs"),
    ("~lr", 1, "--lr"),
    ("~vocab-size", 1, "--padded-vocab-size"),
    # ranges
    ("--num-layers 0", 1, "--num-layers 0"),
    ("--micro-batch-size 0", 1, "--micro-batch-size 0"),
    ("--tensor-model-parallel-size 0", 1, "--tensor-model-parallel-size 0"),
    ("--attention-dropout 1.5", 1, "--attention-dropout 1.5"),
    ("--lr -1", 1, "--lr -1"),
    ("--weight-decay -0.1", 1, "--weight-decay -0.1"),
    ("--seed 0", 1, "--seed 0"),
    ("--plan-device abacus", 1, "--plan-device abacus: is no known device; choose A100"),
    ("--plan-device no.yaml", 1, "--plan-device no.yaml: cannot be read"),
    ("--log-interval 0", 1, "--log-interval 0"),
    ("--lr-warmup-fraction 1", 1, "--lr-warmup-fraction 1"),
    ("--train-iters 0", 1, "--train-iters 0"),
    ("--adam-beta2 1.0", 1, "--adam-beta2 1"),
    ("--fp16 --initial-loss-scale 0.5", 1, "--initial-loss-scale 0.5"),
    ("--position-embedding-type rope --rotary-percent 0", 1, "--rotary-percent 0"),
    # sizes that must divide
    ("--tensor-model-parallel-size 2", 3, "--tensor-model-parallel-size 2"),
    ("--tensor-model-parallel-size 8", 8, "--num-attention-heads 4"),
    ("--tensor-model-parallel-size 4 --tp-2d --tp-x 4 --tp-y 2", 4, "--tp-x 4"),
    ("--num-attention-heads 5", 1, "--hidden-size 64"),
    ("--micro-batch-size 2 --global-batch-size 4 --eval-global-batch-size 3", 1, "--eval-global-batch-size 3"),
    ("--group-query-attention --num-query-groups 3", 1, "--num-query-groups 3"),
    (
        "--num-attention-heads 12 --hidden-size 96 --group-query-attention --num-query-groups 3 "
        "--tensor-model-parallel-size 2",
        2,
        "--num-query-groups 3",
    ),
    ("--ffn-hidden-size 65 --tensor-model-parallel-size 2", 2, "--ffn-hidden-size 65"),
    (
        "--unaligned-linear --num-attention-heads 12 --hidden-size 96 --group-query-attention --num-query-groups 3 "
        "--tensor-model-parallel-size 4",
        4,
        "--num-query-groups 3: must be a multiple or a divisor of --tensor-model-parallel-size 4",
    ),
    (
        "--unaligned-linear --ffn-hidden-size 65 --tensor-model-parallel-size 2 --optimizer muon",
        2,
        "--unaligned-linear: does not go with --optimizer muon where --tensor-model-parallel-size does not divide "
        "feed-forward width: its steps follow from shapes",
    ),
    ("--padded-vocab-size 513 --tensor-model-parallel-size 2", 2, "--padded-vocab-size 513"),
    ("--global-batch-size 7", 1, "--global-batch-size 7"),
    ("--global-batch-size 8", 3, "--global-batch-size 8"),
    ("--max-position-embeddings 32", 1, "--max-position-embeddings 32"),
    ("--padded-vocab-size 256", 1, "--padded-vocab-size 256"),
    ("--pipeline-model-parallel-size 8", 8, "--pipeline-model-parallel-size 8"),
    ("--seq-length 63 --tensor-model-parallel-size 2 --sequence-parallel", 2, "--seq-length 63"),
    ("--seq-length 62 --context-parallel-size 4", 4, "--seq-length 62"),
    # pipeline
    ("--num-layers-per-virtual-pipeline-stage 1", 1, "--num-layers-per-virtual-pipeline-stage 1"),
    (
        "--num-layers-per-virtual-pipeline-stage 3 --pipeline-model-parallel-size 2",
        2,
        "--num-layers-per-virtual-pipeline-stage 3",
    ),
    (
        "--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2 --global-batch-size 6",
        2,
        "--global-batch-size 6 (micro-batches: 3)",
    ),
    ("--num-layer-list 1,2 --pipeline-model-parallel-size 2", 2, "--num-layer-list [1, 2]"),
    ("--num-layer-list 4 --pipeline-model-parallel-size 2", 2, "--num-layer-list [4]"),
    (
        "--pipeline-model-parallel-layout Ettx|ttL --pipeline-model-parallel-size 2",
        2,
        "--pipeline-model-parallel-layout Ettx|ttL: must be stages",
    ),
    (
        "--pipeline-model-parallel-layout ttE|ttL --pipeline-model-parallel-size 2",
        2,
        "--pipeline-model-parallel-layout ttE|ttL: must be stages",
    ),
    (
        "--pipeline-model-parallel-layout Ett|ttL|L --pipeline-model-parallel-size 3",
        3,
        "--pipeline-model-parallel-layout Ett|ttL|L: must be stages",
    ),
    (
        "--pipeline-model-parallel-layout Em|ttttL --pipeline-model-parallel-size 2",
        2,
        "--pipeline-model-parallel-layout Em|ttttL: must be stages",
    ),
    (
        "--pipeline-model-parallel-layout Et*99999999L",
        1,
        "--pipeline-model-parallel-layout Et*99999999L: must be stages",
    ),
    (
        "--pipeline-model-parallel-layout E(t*9999)*9999L",
        1,
        "--pipeline-model-parallel-layout E(t*9999)*9999L: must be stages",
    ),
    (
        "--pipeline-model-parallel-layout Et|t*2|tL --pipeline-model-parallel-size 2",
        2,
        "--pipeline-model-parallel-layout Et|tt|tL: has 3 virtual",
    ),
    (
        "--pipeline-model-parallel-layout Ett|tL --pipeline-model-parallel-size 2",
        2,
        "--pipeline-model-parallel-layout (--num-layer-list [2, 1]): adds up to 3",
    ),
    (
        "--pipeline-model-parallel-layout Ett|ttmL --pipeline-model-parallel-size 2",
        2,
        "--pipeline-model-parallel-layout Ett|ttmL: has m 1 times",
    ),
    (
        "--pipeline-model-parallel-layout Ettt|t|m|L --pipeline-model-parallel-size 4 --mtp-num-layers 1 "
        "--position-embedding-type rope",
        4,
        "--pipeline-model-parallel-layout Ettt|t|m|L: multi-token prediction is on the last stage, where "
        "the loss is; put m before L",
        "--pipeline-model-parallel-layout (--num-layer-list [3, 1, 0, 0])",
    ),
    (
        "--pipeline-model-parallel-layout Ett|ttL --pipeline-model-parallel-size 2 --num-layer-list 3,1",
        2,
        "--num-layer-list 3 1: contradicts --pipeline-model-parallel-layout",
    ),
    ("--noop-layers 4", 1, "--noop-layers 4"),
    (f"{SHARED_KEYS} --noop-layers 2", 1, "--noop-layers 2: layer 3 shares its choice of keys"),
    (
        "--decoder-first-pipeline-num-layers 1 --pipeline-model-parallel-size 3 --global-batch-size 6",
        3,
        "--decoder-first-pipeline-num-layers 1",
    ),
    ("--standalone-embedding-stage", 1, "--standalone-embedding-stage"),
    # context parallelism
    ("--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo", 4, "--context-parallel-algo hybrid_cp_algo"),
    (
        "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 3",
        4,
        "--ulysses-degree-in-cp 3",
    ),
    ("--context-parallel-size 8 --context-parallel-algo ulysses_cp_algo", 8, "--num-attention-heads 4"),
    ("--context-parallel-size 4 --ulysses-degree-in-cp 2", 4, "--ulysses-degree-in-cp 2"),
    ("--context-parallel-algo mamba_cp_algo", 1, "--context-parallel-algo mamba_cp_algo"),
    # experts
    ("--expert-model-parallel-size 2", 2, "--expert-model-parallel-size 2"),
    ("--num-experts 3 --expert-model-parallel-size 2", 2, "--num-experts 3"),
    ("--num-experts 4 --expert-model-parallel-size 4", 2, "--expert-model-parallel-size 4"),
    ("--num-experts 2 --moe-router-topk 4", 1, "--moe-router-topk 4"),
    ("--num-experts 4 --tensor-model-parallel-size 2 --seq-length 63", 2, "--seq-length 63"),
    *(
        (f"--num-experts 4 --tensor-model-parallel-size 2 {change}", 2, named)
        for change, named in (
            ("--sequence-parallel --moe-ffn-hidden-size 25", f"--moe-ffn-hidden-size 25: {OF_EXPERTS} 2"),
            ("--ffn-hidden-size 25", f"--moe-ffn-hidden-size 25: {OF_EXPERTS} 2"),
            (
                "--moe-shared-expert-intermediate-size 25 --expert-tensor-parallel-size 1",
                f"--moe-shared-expert-intermediate-size 25: {OF_DENSE} 2",
            ),
            (
                "--moe-layer-freq [0,1,1,1] --ffn-hidden-size 25 --moe-ffn-hidden-size 24",
                f"--ffn-hidden-size 25: {OF_DENSE} 2",
            ),
        )
    ),
    ("--num-experts 4 --moe-pad-expert-input-to-capacity", 1, "--moe-pad-expert-input-to-capacity"),
    ("--num-experts 4 --moe-layer-freq [1,0]", 1, "--moe-layer-freq [1, 0]"),
    (
        "--num-experts 4 --moe-router-load-balancing-type sparsemixer_topk --moe-router-topk 1",
        1,
        "--moe-router-load-balancing-type sparsemixer_topk",
        "--moe-router-topk 1",
    ),
    ("--num-experts 4 --moe-device-level-aux-loss-coeff 0.05", 1, "--moe-device-level-aux-loss-coeff 0.05"),
    (
        "--num-experts 4 --moe-comm-aux-loss-coeff 0.05 --moe-router-num-groups 2 "
        "--moe-router-load-balancing-type sinkhorn",
        1,
        "--moe-comm-aux-loss-coeff 0.05",
    ),
    ("--moe-comm-aux-loss-coeff 0.05", 1, "--moe-comm-aux-loss-coeff"),
    ("--num-experts 4 --hot-expert-num 5", 1, "--hot-expert-num 5"),
    ("--num-experts 4 --hot-expert-num 1 --overlap-grad-reduce", 1, "--hot-expert-num 1"),
    ("--num-experts 4 --hot-expert-num 1 --zero-stage 2", 1, "--hot-expert-num 1"),
    ("--num-experts 4 --hot-expert-num 1 --cold-token-percent 0.5", 1, "--cold-token-percent 0.5"),
    ("--num-experts 4 --enable-shared-expert", 1, "--enable-shared-expert"),
    ("--num-experts 4 --shared-moe-ffn-hidden-size 64", 1, "--shared-moe-ffn-hidden-size"),
    # schedules, optimizer, checkpoints
    ("--min-lr 1", 1, "--min-lr 1"),
    ("--lr-warmup-iters 10", 1, "--lr-warmup-iters 10"),
    ("--lr-warmup-fraction 0.1 --lr-warmup-iters 5", 1, "--lr-warmup-iters 5"),
    ("--train-samples 100", 1, "--train-samples 100"),
    ("--lr-decay-samples 50", 1, "--lr-decay-samples"),
    ("--rampup-batch-size 2 2 20", 1, "--rampup-batch-size"),
    ("~train-iters --train-samples 100 --step-batch-size-schedule 0:6", 1, "--step-batch-size-schedule [[0, 6]]"),
    ("~train-iters --train-samples 100 --step-batch-size-schedule 100:8", 1, "--step-batch-size-schedule [[100, 8]]"),
    (
        "~train-iters --train-samples 100 --rampup-batch-size 4 3 20",
        1,
        "--rampup-batch-size 4 3 20",
        "--rampup-batch-size 4 3 20",
    ),
    (
        "--pipeline-schedule zb-v --pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights "
        "--decoder-first-pipeline-num-layers 0",
        2,
        "--decoder-first-pipeline-num-layers 0",
    ),
    ("--lr-decay-style WSD", 1, "--lr-decay-style WSD"),
    ("--start-weight-decay 0.1", 1, "--start-weight-decay", "--start-weight-decay 0.1"),
    ("--start-weight-decay 0.1 --end-weight-decay 0.2", 1, "--start-weight-decay 0.1"),
    ("--weight-decay-incr-style linear", 1, "--weight-decay-incr-style linear"),
    ("--weight-decay-incr-style linear --start-weight-decay 0.2 --end-weight-decay 0.1", 1, "--end-weight-decay 0.1"),
    ("--overlap-param-gather", 1, "--overlap-param-gather", "--overlap-param-gather"),
    ("--save somewhere", 1, "--save"),
    (
        "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
        1,
        "--override-opt_param-scheduler --use-checkpoint-opt_param-scheduler",
    ),
    ("--split 0,0,0", 1, "--split 0,0,0"),
    ("--split 1,1,1,1", 1, "--split 1,1,1,1"),
    ("--split 0,1,1", 1, "--split 0,1,1"),
    ("--data-path 0.5 a 0.5", 1, "--data-path 0.5 a 0.5"),
    ("--data-path 0.5 a -1 b", 1, "--data-path 0.5 a -1 b"),
    ("--data-path a 0.5 b 0.5", 1, "--data-path a 0.5 b 0.5"),
    ("--enable-thinking maybe", 1, "--enable-thinking maybe"),
    # precision and model
    ("--bf16 --fp16", 1, "--fp16"),
    ("--fp16-lm-cross-entropy", 1, "--fp16-lm-cross-entropy"),
    ("--fp32-residual-connection", 1, "--fp32-residual-connection"),
    ("--initial-loss-scale 65536", 1, "--initial-loss-scale 65536: needs --fp16 or --bf16"),
    ("--loss-scale 128", 1, "--loss-scale 128"),
    ("--adaptive-loss-scale", 1, "--adaptive-loss-scale"),
    ("--fp16 --hysteresis 4 --bf16", 1, "--fp16"),
    ("--bf16 --embedding-dtype fp16", 1, "--embedding-dtype float16"),
    ("--params-dtype bf16 --compute-dtype fp32", 1, "--params-dtype bfloat16"),
    ("--params-dtype int8", 1, "--params-dtype int8"),
    ("--swiglu --squared-relu", 1, "--squared-relu"),
    ("--use-fused-rmsnorm", 1, "--use-fused-rmsnorm"),
    ("--use-fused-rotary-pos-emb", 1, "--use-fused-rotary-pos-emb"),
    ("--no-position-embedding", 1, "--no-position-embedding"),
    ("--position-embedding-type alibi --square-alibi-mask", 1, "--square-alibi-mask"),
    ("--recompute-granularity full", 1, "--recompute-granularity full", "--recompute-granularity full"),
    (
        "--recompute-granularity full --recompute-method block --recompute-num-layers 1 --recompute [1]",
        1,
        "--recompute-granularity full",
    ),
    (
        "--recompute-activations --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
        1,
        "--recompute-activations: contradicts --recompute-granularity full",
    ),
    ("--recompute [1,1]", 1, "--recompute [1, 1]"),
    ("--select-recompute ['feed_forwrad']", 1, "--select-recompute feed_forwrad"),
    ("--num-experts 4 --moe-layer-freq 0 --select-recompute ['mlp']", 1, "--moe-layer-freq 0"),
    ("--select-recompute ['moe']", 1, "--select-recompute moe"),
    (r"--select-recompute ['latent\\.up_projections']", 1, r"--select-recompute latent\.up_projections"),
    ("--recompute-granularity selective --recompute-modules moe_act", 1, "--recompute-modules moe_act"),
    (
        "--enable-recompute-layers-per-pp-rank --recompute-granularity full --recompute-method uniform "
        "--recompute-num-layers 1",
        1,
        "--enable-recompute-layers-per-pp-rank",
    ),
    ("--recompute-norm --apply-residual-connection-post-layernorm", 1, "--recompute-norm"),
    ("--recompute-granularity selective --recompute-method uniform", 1, "--recompute-method uniform"),
    ("--recompute-granularity selective --recompute-num-layers 1", 1, "--recompute-num-layers 1"),
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 0", 1, "--recompute-num-layers 0"),
    ("--position-embedding-type rope --rotary-percent 0.05", 1, "--rotary-percent 0.05"),
    ("--multi-latent-attention --kv-lora-rank 8 --group-query-attention", 1, "--group-query-attention"),
    ("--multi-latent-attention", 1, "--multi-latent-attention"),
    (
        "--multi-latent-attention --kv-lora-rank 8 --fine-grained-activation-offloading --offload-modules qkv_linear",
        1,
        "--offload-modules qkv_linear",
    ),
    ("--recompute-granularity selective --recompute-modules mla_up_proj", 1, "--recompute-modules mla_up_proj"),
    ("--multi-latent-attention --kv-lora-rank 0", 1, "--kv-lora-rank 0"),
    ("--multi-latent-attention --kv-lora-rank 8 --q-lora-rank 0", 1, "--q-lora-rank 0"),
    ("--multi-latent-attention --kv-lora-rank 8 --rotary-interleaved", 1, "--rotary-interleaved"),
    ("--num-experts 4 --first-k-dense-replace 9", 1, "--first-k-dense-replace (--moe-layer-freq [0, 0, 0, 0])"),
    ("--multi-latent-attention --kv-lora-rank 8 --qk-pos-emb-head-dim 3", 1, "--qk-pos-emb-head-dim 3"),
    ("--experimental-attention-variant dsa", 1, "--experimental-attention-variant dsa: needs --multi-latent-attention"),
    (f"{LATENT} --experimental-attention-variant dsa", 1, "--experimental-attention-variant dsa"),
    (f"{LATENT} --enable-dsa-indexer --index-head-dim 32", 1, "--index-head-dim 32"),
    (f"{LATENT} --enable-dsa-indexer --index-topk-pattern SF", 1, "--index-topk-pattern SF"),
    (f"{LATENT} --enable-dsa-indexer --sliding-window 3", 1, "--sliding-window 3"),
    (f"{LATENT} --enable-dsa-indexer --qk-clip", 1, "--qk-clip"),
    ("--qk-clip --qk-layernorm", 1, "--qk-clip"),
    ("--qk-clip --cla-share-factor 2", 1, "--qk-clip"),
    ("--moe-enable-routing-replay", 1, "--moe-enable-routing-replay"),
    ("--num-experts 4 --moe-shortcut-connected --moe-enable-routing-replay", 1, "--moe-shortcut-connected"),
    ("--num-experts 4 --moe-shortcut-connected --qk-clip", 1, "--moe-shortcut-connected"),
    ("--num-experts 4 --moe-shortcut-connected --log-max-attention-logit", 1, "--moe-shortcut-connected"),
    (
        "--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-enable-routing-replay",
        1,
        "--moe-enable-routing-replay",
    ),
    ("--qk-clip --lora-r 4 --lora-target-modules linear_qkv", 1, "--qk-clip"),
    (
        "--log-max-attention-logit --experimental-attention-variant dsa --multi-latent-attention --kv-lora-rank 8 "
        "--dsa-indexer-loss-coeff 1",
        1,
        "--log-max-attention-logit",
    ),
    (f"{LATENT} --enable-dsa-indexer --index-topk 0", 1, "--index-topk 0"),
    ("--experimental-attention-variant gated_delta_net", 1, "--experimental-attention-variant gated_delta_net: needs"),
    (f"{DELTA} --linear-num-value-heads 3", 1, "--linear-num-value-heads 3"),
    (f"{DELTA} --context-parallel-size 4", 4, "--linear-num-key-heads 2"),
    (f"{DELTA} --reset-attention-mask", 1, "--reset-attention-mask"),
    (f"{DELTA} --linear-attention-freq 0", 1, "--linear-attention-freq 0"),
    ("--hybrid-override-pattern MX --mamba-num-groups 1", 1, "--hybrid-override-pattern MX"),
    ("--is-hybrid-model --mamba-num-groups 3 --mamba-num-heads 4", 1, "--mamba-num-heads 4"),
    ("--is-hybrid-model --mamba-num-groups 2 --context-parallel-size 4", 4, "--mamba-num-groups 2"),
    ("--is-hybrid-model --mamba-num-groups 1 --reset-attention-mask", 1, "--reset-attention-mask"),
    ("--hybrid-layer-pattern HHHH --mamba-num-groups 3 --mamba-num-heads 4", 1, "--mamba-num-heads 4"),
    ("--hybrid-layer-pattern HHHH --mamba-num-groups 1 --mamba-multipliers 1 1", 1, "--mamba-multipliers [1.0, 1.0]"),
    (
        "--hybrid-layer-pattern HHHH --mamba-num-groups 1 --side-by-side-weights 1 0",
        1,
        "--side-by-side-weights [1.0, 0.0]",
    ),
    ("--gate-multiplier 2", 1, "--gate-multiplier 2: needs a gated activation"),
    (f"{LATENT} --attention-output-gate", 1, "--attention-output-gate"),
    ("--position-embedding-type rope --rope-scaling-type longrope", 1, "--rope-scaling-type longrope"),
    ("--rope-scaling-original-max-position-embeddings 1", 1, "--rope-scaling-original-max-position-embeddings 1"),
    ("--multi-head-latent-attention --q-lora-rank 8", 1, "--multi-head-latent-attention"),
    ("--num-experts 8 --moe-router-topk 9", 1, "--moe-router-topk 9"),
    ("--num-experts 4 --moe-router-num-groups 2 --moe-router-group-topk 1 --moe-router-topk 3", 1, TOO_MANY),
    (
        "--num-experts 4 --moe-router-num-groups 4 --moe-router-group-topk 3 --moe-router-topk 2",
        1,
        "--moe-router-topk 2: must be at least --moe-router-group-topk 3",
    ),
    ("--num-experts 8 --moe-expert-capacity-factor -1", 1, "--moe-expert-capacity-factor -1"),
    ("--num-experts 4 --hot-expert-num 5", 1, "--hot-expert-num 5"),
    ("--num-experts 6 --expert-model-parallel-size 4", 4, "--num-experts 6"),
    ("--sliding-window 8 --window-attn-skip-freq 0", 1, "--window-attn-skip-freq 0"),
    ("--sliding-window 8 --window-attn-skip-freq ([1]*3)", 1, "--window-attn-skip-freq [1, 1, 1]"),
    ("--window-size 8,2", 1, "--window-size 8,2"),
    ("--next-tockens -1", 1, "--next-tockens -1"),
    ("--use-rope-scaling", 1, "--use-rope-scaling (--rope-scaling-type llama3)"),
    # flags, values and old names that are refused
    ("--fp4-format e2m1", 1, "--fp4-format e2m1"),
    ("--fp8-format e5m2", 1, "--fp8-format e5m2"),
    ("--fp8-simulate", 1, "--fp8-simulate"),
    ("--fp8-simulate --fp8-format e4m3 --fp8-recipe custom", 1, "--fp8-recipe custom"),
    ("--fp8-simulate --fp8-format e4m3 --first-last-layers-bf16", 1, "--first-last-layers-bf16"),
    ("--fp8-simulate --fp8-format e4m3 --fp8-recipe mxfp8 --no-fp8-wgrad", 1, "--no-fp8-wgrad"),
    ("--fp8-simulate --fp8-format e4m3 --qat-scheme w4a16-mxfp4", 1, "--fp8-simulate"),
    ("--fp8-simulate --fp8-format e4m3 --num-experts 4 --hot-expert-num 1", 1, "--fp8-recipe delayed"),
    ("--optimizer lamb", 1, "--optimizer lamb"),
    ("--optimizer muon --muon-fp32-matmul-prec low", 1, "--muon-fp32-matmul-prec low"),
    ("--optimizer muon --muon-coefficient-type cubic", 1, "--muon-coefficient-type cubic"),
    ("--optimizer muon --muon-scalar-optimizer lion", 1, "--muon-scalar-optimizer lion"),
    (
        "--optimizer muon --muon-tp-mode blockwise --tensor-model-parallel-size 4 --group-query-attention "
        "--num-query-groups 2",
        4,
        "--muon-tp-mode blockwise",
    ),
    ("--optimizer muon --use-precision-aware-optimizer", 1, "--use-precision-aware-optimizer"),
    ("--optimizer sgd --pma-fused-algo sma", 1, "--pma-fused-algo sma"),
    ("--transformer-impl inference_optimized", 1, "--transformer-impl inference_optimized"),
    ("--spec my.module layer", 1, "--spec my.module"),
    ("--batch-size 4", 1, "--batch-size 4"),
    # tokenizers and data
    ("--tokenizer-type GPT2BPETokenizer", 1, "--tokenizer-type GPT2BPETokenizer"),
    ("~vocab-size --tokenizer-type NullTokenizer", 1, "--tokenizer-type NullTokenizer", "--padded-vocab-size"),
    ("--data-path a --train-data-path b", 1, "--train-data-path b"),
    # rarer combinations
    ("--hidden-size 66", 1, "--hidden-size 66"),
    ("--hidden-size -64", 1, "--hidden-size -64"),
    ("--num-layers 1e2", 1, "--num-layers 1e2"),
    ("--num-attention-heads 0", 1, "--num-attention-heads 0"),
    ("--seq-length 0", 1, "--seq-length 0"),
    ("--kv-channels 0", 1, "--kv-channels 0"),
    ("--group-query-attention --num-query-groups 0", 1, "--num-query-groups 0"),
    ("--group-query-attention --num-query-groups 8", 1, "--num-query-groups 8"),
    ("--tensor-model-parallel-size -1", 1, "--tensor-model-parallel-size -1"),
    ("--tensor-model-parallel-size 2.0", 2, "--tensor-model-parallel-size 2.0"),
    ("--pipeline-model-parallel-size 3 --num-layers 2", 3, "--pipeline-model-parallel-size 3"),
    ("--context-parallel-size 2 --seq-length 66 --max-position-embeddings 66", 2, "--seq-length 66"),
    ("--global-batch-size 0", 1, "--global-batch-size 0"),
    ("--global-batch-size 1", 1, "--global-batch-size 1"),
    ("--train-iters -5", 1, "--train-iters -5"),
    ("~train-iters --train-samples 0", 1, "--train-samples 0"),
    ("~train-iters --train-samples 100 --lr-decay-iters 5", 1, "--lr-decay-iters"),
    ("~train-iters --train-samples 100 --lr-warmup-iters 5", 1, "--lr-warmup-iters"),
    ("--lr-warmup-samples 5", 1, "--lr-warmup-samples"),
    ("--lr-decay-iters 5 --lr-warmup-iters 5", 1, "--lr-warmup-iters 5"),
    ("--lr-decay-iters 0", 1, "--lr-decay-iters 0"),
    ("--lr-decay-style exponential", 1, "--lr-decay-style exponential"),
    ("--lr-decay-style WSD --lr-wsd-decay-iters 20", 1, "--lr-wsd-decay-iters 20"),
    ("--min-lr -1", 1, "--min-lr -1"),
    ("--lr-warmup-fraction -0.1", 1, "--lr-warmup-fraction -0.1"),
    ("--adam-eps 0", 1, "--adam-eps 0"),
    ("--clip-grad -1", 1, "--clip-grad -1"),
    ("--weight-decay nan", 1, "--weight-decay nan"),
    (
        "--weight-decay-incr-style linear --start-weight-decay -0.1 --end-weight-decay 0.1",
        1,
        "--start-weight-decay -0.1",
    ),
    ("--fp16 --initial-loss-scale 0", 1, "--initial-loss-scale 0"),
    ("--fp16 --min-loss-scale 0", 1, "--min-loss-scale 0"),
    ("--fp16 --initial-loss-scale 1 --min-loss-scale 2", 1, "--initial-loss-scale 1"),
    ("--fp16 --hysteresis 0", 1, "--hysteresis 0"),
    ("--fp16 --loss-scale-factor 1", 1, "--loss-scale-factor 1"),
    ("--bf16 --params-dtype fp16", 1, "--params-dtype float16"),
    ("--fp16 --compute-dtype bf16", 1, "--compute-dtype bfloat16"),
    ("--num-virtual-stages-per-pipeline-rank 2", 1, "--num-virtual-stages-per-pipeline-rank 2"),
    ("--encoder-num-layers 0 ~num-layers", 1, "--encoder-num-layers 0"),
    ("--num-layer-list 5,-1 --pipeline-model-parallel-size 2", 2, "--num-layer-list [5, -1]"),
    ("--num-layer-list 2,2", 1, "--num-layer-list [2, 2]"),
    ("--noop-layers 1,1", 1, "--noop-layers 1,1"),
    ("--noop-layers 0,1,2,3", 1, "--noop-layers 0,1,2,3"),
    ("--pipeline-schedule interleaved --pipeline-model-parallel-size 2", 2, "--pipeline-schedule interleaved"),
    ("--context-parallel-algo ring", 1, "--context-parallel-algo ring"),
    (
        "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 4",
        4,
        "--ulysses-degree-in-cp 4",
    ),
    ("--hierarchical-context-parallel-sizes 2 2", 1, "--hierarchical-context-parallel-sizes 2 2"),
    ("--num-experts 0", 1, "--num-experts 0"),
    ("--moe-router-topk 3", 1, "--moe-router-topk"),
    ("--moe-shared-expert-intermediate-size 64", 1, "--moe-shared-expert-intermediate-size"),
    ("--num-experts 4 --moe-router-topk 1", 1, "--moe-router-topk 1"),
    ("--num-experts 4 --moe-router-topk 0", 1, "--moe-router-topk 0"),
    ("--num-experts 4 --moe-aux-loss-coeff -1", 1, "--moe-aux-loss-coeff -1"),
    (
        "--num-experts 4 --moe-router-load-balancing-type aux_loss none",
        1,
        "--moe-router-load-balancing-type aux_loss none",
    ),
    ("--num-experts 4 --moe-router-load-balancing-type aux_loss seq_aux_loss", 1, "--moe-aux-loss-coeff 0"),
    ("--num-experts 4 --moe-router-load-balancing-type sinkhorn --moe-aux-loss-coeff 1", 1, "--moe-aux-loss-coeff 1"),
    ("--num-experts 4 --moe-expert-capacity-factor -1", 1, "--moe-expert-capacity-factor -1"),
    ("--num-experts 4 --moe-router-dtype fp64 --device-target Ascend", 1, "--moe-router-dtype fp64"),
    ("--num-experts 4 --moe-log-drop-rate", 1, "--moe-log-drop-rate"),
    ("--num-experts 4 --moe-layer-freq [1,2,0,1]", 1, "--moe-layer-freq [1, 2, 0, 1]"),
    (
        "--num-experts 4 --moe-router-num-groups 2 --moe-router-group-topk 1 --moe-router-group-score-topk 3",
        1,
        "--moe-router-group-score-topk 3",
    ),
    ("--num-experts 4 --moe-router-group-topk 2", 1, "--moe-router-group-topk 2"),
    ("--num-experts 4 --moe-router-num-groups 3 --moe-router-group-topk 1", 1, "--moe-router-num-groups 3"),
    ("--num-experts 4 --n-shared-experts 1", 1, "--n-shared-experts"),
    (
        "--num-experts 4 --moe-ffn-hidden-size 32 --n-shared-experts 2 --moe-shared-expert-intermediate-size 32",
        1,
        "--moe-shared-expert-intermediate-size 32: contradicts --n-shared-experts 2",
    ),
    (
        "--num-experts 4 --moe-ffn-hidden-size 32 --n-shared-experts 2 --moe-shared-expert-intermediate-size 32 "
        "--enable-shared-expert --shared-moe-ffn-hidden-size 64",
        1,
        "--moe-shared-expert-intermediate-size 32: contradicts --n-shared-experts 2",
    ),
    ("--split 1,2,x", 1, "--split 1,2,x"),
    ("--split -1,1,1", 1, "--split", "-1,1,1"),
    ("--data-path", 1, "--data-path "),
    ("--data-path 0 a 0 b", 1, "--data-path 0 a 0 b"),
    ("--valid-data-path a", 1, "--valid-data-path"),
    ("--mock-data --data-path a", 1, "--mock-data"),
    ("--tokenizer-type NoSuchTokenizer", 1, "--tokenizer-type NoSuchTokenizer"),
    ("--tokenizer-type HuggingFaceTokenizer", 1, "--tokenizer-type HuggingFaceTokenizer"),
    ("--tokenizer-type GPT2BPETokenizer --vocab-file v", 1, "--tokenizer-type GPT2BPETokenizer"),
    ("--make-vocab-size-divisible-by 0", 1, "--make-vocab-size-divisible-by 0"),
    ("--rotary-seq-len-interpolation-factor 2", 1, "--rotary-seq-len-interpolation-factor"),
    ("--kv-channels 15 --position-embedding-type rope", 1, "--kv-channels 15"),
    ("--hidden-dropout 1.0", 1, "--hidden-dropout 1"),
    ("--use-sandwich-norm --attn-post-norm-scale 2", 1, "--attn-post-norm-scale 2"),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers -1", 1, "--recompute-num-layers -1"),
    ("--recompute-activations --recompute-method uniform", 1, "--recompute-method uniform"),
    ("--save x --save-interval 0", 1, "--save-interval 0"),
    ("--ckpt-format zarr", 1, "--ckpt-format zarr"),
    ("--eval-interval 0", 1, "--eval-interval 0"),
    ("--overlap-param-gather --use-distributed-optimizer", 1, "--overlap-param-gather"),
    ("--overlap-grad-reduce --no-wrap-with-ddp", 1, "--no-wrap-with-ddp"),
    ("--wrap-with-ddp --no-wrap-with-ddp", 1, "--no-wrap-with-ddp: does not go with --wrap-with-ddp"),
    ("--no-wrap-with-ddp --wrap-with-ddp", 1, "--no-wrap-with-ddp: does not go with --wrap-with-ddp"),
    ("--optimizer dist_muon --zero-stage 0", 1, "--zero-stage 0: does not go with --optimizer dist_muon"),
    (
        "--optimizer dist_muon --use-megatron-fsdp --data-parallel-sharding-strategy no_shard",
        1,
        "--data-parallel-sharding-strategy no_shard: does not go with --optimizer dist_muon",
    ),
    ("--zero-stage 0 --use-distributed-optimizer", 1, "--zero-stage 0"),
    ("--num-distributed-optimizer-instances 2", 2, "--num-distributed-optimizer-instances 2"),
    (
        "--use-distributed-optimizer --num-distributed-optimizer-instances 3",
        4,
        "--num-distributed-optimizer-instances 3",
    ),
    ("--zero-stage 3 --pipeline-model-parallel-size 2", 2, "--zero-stage 3"),
    ("--zero-stage 2 --cpu-offload-params", 2, "--cpu-offload-params"),
    ("--nvme-path x --cpu-offload-optimizer", 1, "--nvme-path x"),
    ("--optimizer-offload-fraction 0.5", 1, "--optimizer-offload-fraction 0.5"),
    ("--optimizer-offload-fraction 1.5 --optimizer-cpu-offload", 1, "--optimizer-offload-fraction 1.5"),
    ("--use-megatron-fsdp --zero-stage 2", 2, "--zero-stage 2"),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy all", 2, "--data-parallel-sharding-strategy all"),
    ("--data-parallel-sharding-strategy optim", 2, "--data-parallel-sharding-strategy"),
    ("--megatron-fsdp-grad-comm-dtype bf16", 2, "--megatron-fsdp-grad-comm-dtype: needs --use-megatron-fsdp"),
    ("--use-torch-fsdp2 --use-distributed-optimizer", 2, "--use-distributed-optimizer"),
    ("--use-torch-fsdp2 --use-megatron-fsdp", 2, "--use-megatron-fsdp"),
    ("--use-megatron-fsdp --megatron-fsdp-main-params-dtype bf16", 2, "--megatron-fsdp-main-params-dtype bf16"),
    ("--use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp16", 2, "--megatron-fsdp-main-grads-dtype fp16"),
    (
        "--use-torch-fsdp2 --check-weight-hash-across-dp-replicas-interval 5",
        2,
        "--check-weight-hash-across-dp-replicas-interval 5",
    ),
    ("--use-precision-aware-optimizer --exp-avg-dtype fp8", 1, "--exp-avg-dtype fp8"),
    ("--use-precision-aware-optimizer --exp-avg-sq-dtype fp16", 1, "--exp-avg-sq-dtype fp16"),
    ("--use-precision-aware-optimizer --main-params-dtype fp16", 1, "--main-params-dtype fp16"),
    ("--exp-avg-dtype bf16", 1, "--exp-avg-dtype bf16: needs --use-precision-aware-optimizer"),
    ("--bf16 --main-grads-dtype bf16", 1, "--main-grads-dtype: needs --use-precision-aware-optimizer"),
    (
        "--bf16 --use-precision-aware-optimizer --accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16",
        1,
        "--accumulate-allreduce-grads-in-fp32: does not go with --main-grads-dtype bf16",
    ),
    ("--clip-grad-value 0.5", 1, "--clip-grad-value 0.5"),
    ("--no-weight-decay-params bias nosuch gamma", 1, "--no-weight-decay-params nosuch gamma"),
    ("--no-weight-decay-params bias --apply-wd-to-qk-layernorm", 1, "--apply-wd-to-qk-layernorm"),
    ("--profile --profile-step-start 5 --profile-step-end 3", 1, "--profile-step-end 3"),
    ("--trace --profile-step-start 5 --profile-step-end 5", 1, "--profile-step-end 5"),
    ("--profile --profile-step-start 5", 1, "--profile-step-end 5"),
    ("--trace --profile-step-start 20", 1, "--profile-step-end 5"),
    ("--profile --profile-level level9", 1, "--profile-level level9"),
    ("--device-target GPU", 1, "--device-target GPU"),
    ("--threads 0", 1, "--threads 0"),
    ("--lora-target-modules linear_qkv --lora-r 0", 1, "--lora-r 0"),
    ("--lora-target-modules linear_qkv linear_kvq", 1, "--lora-target-modules linear_kvq"),
    ("--lora-target-modules layers.0.*qkv --pipeline-model-parallel-size 2", 2, "--lora-target-modules layers.0.*qkv"),
    ("--lora-target-modules linear_(", 1, "--lora-target-modules linear_("),
    ("--lora-target-modules linear_qkv)(", 1, "--lora-target-modules linear_qkv)("),
    ("--lora-target-modules linear_qkv)|(linear_proj", 1, "--lora-target-modules linear_qkv)|(linear_proj"),
    ("--num-experts 4 --lora-target-modules experts.0.linear_fc1", 1, "--lora-target-modules experts.0.linear_fc1"),
    ("--num-experts 4 --lora-dropout 0.1 --lora-target-modules linear_fc1", 1, "--lora-dropout 0.1"),
    ("--num-experts 4 --lora-target-modules linear_qkv --hot-expert-num 1", 1, "--hot-expert-num 1"),
    ("--sliding-window -1", 1, "--sliding-window -1"),
    ("--decoupled-min-lr 1e-4", 1, "--decoupled-min-lr 0.0001"),
    ("--decoupled-lr 1e-5 --decoupled-min-lr 1e-4", 1, "--decoupled-min-lr 0.0001"),
    ("--min-lr 1e-4 --decoupled-lr 1e-5", 1, "--min-lr 0.0001"),
    ("--micro-batch-num 3", 1, "--global-batch-size 8"),
    ("--lr 1e-3 1e-4", 1, "--lr 1e-4"),
    ("--lr=", 1, "--lr "),
    ("--LR 1e-3", 1, "--LR"),
    ("--micro_batch_size 2", 1, "--micro_batch_size"),
    ("--tensor-model-parallel 2", 2, "--tensor-model-parallel"),
    ("--fp16=True", 1, "--fp16 True"),
    ("-lr 1e-3", 1, "-lr"),
    ("\N{EN DASH}lr 1e-3", 1, "\N{EN DASH}lr: there is no such flag; did you mean --lr"),
    ("--world-size 8", 1, "--world-size"),
    ("--resume-training", 1, "--resume-training"),
    ("--resume-training --load x --finetune", 1, "--resume-training"),
    ("--eos-token-id 512", 1, "--eos-token-id 512"),
    ("--pad-token-id -1", 1, "--pad-token-id -1"),
]
"""(change of the good command line, number of processes, beginning of each finding: nearly always one)."""

GOOD = [
    (
        "--unaligned-linear --num-attention-heads 10 --hidden-size 80 --ffn-hidden-size 65 --num-experts 2 "
        "--moe-ffn-hidden-size 3 --tensor-model-parallel-size 4",
        4,
    ),
    ("--lr 0", 1),
    ("--lr-warmup-iters 9 --lr-decay-iters 10", 1),
    ("--lr-decay-style WSD --lr-wsd-decay-iters 10", 1),
    ("--bf16 --params-dtype fp32", 1),
    ("--bf16 --initial-loss-scale 65536", 1),
    ("--bf16 --loss-scale 128", 1),
    ("--loss-scale 0", 1),
    ("--compute-dtype bf16", 1),
    ("--bf16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32", 1),
    ("--weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 0.1", 1),
    ("--split 99,1", 1),
    ("--split '99,1,0'", 1),
    ("--split 0.9,0.05,.05", 1),
    ("--train-data-path a --valid-data-path b", 1),
    ("--data-path 1 a", 1),
    ("--num-experts 4 --moe-router-topk 1 --moe-router-pre-softmax", 1),
    ("--num-experts 4 --moe-router-topk 1 --moe-router-load-balancing-type sinkhorn", 1),
    ("--moe-token-dispatcher-type alltoall --norm-topk-prob", 1),
    ("--moe-router-topk 2", 1),
    ("--recompute-method uniform", 1),
    ("--noop-layers 0,3", 1),
    (f"{SHARED_KEYS} --qk-layernorm --position-embedding-type rope --noop-layers 2,3", 1),
    ("--num-layer-list [[1,1],[1,1]] --num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2", 2),
    ("--micro-batch-num 4", 1),
    ("~global-batch-size --micro-batch-num 3", 1),
    ("--hidden-dropout 0 --attention-dropout 0.999", 1),
    ("--lora-r 8", 1),
    ("--lora-target-modules (?i)LINEAR_QKV", 1),
    ("--context-parallel-size 4 --context-parallel-algo ulysses_cp_algo --ulysses-degree-in-cp 2", 4),
    ("--eos-token-id 511 --pad-token-id 0", 1),
    ("", 1),
    ("--lr-warmup-iters 0 --lr-warmup-fraction 0.1", 1),
    ("--lr-warmup-iters 9", 1),
    ("--min-lr 1e-3", 1),
    ("--no-weight-decay-params decoder.final_layernorm.weight bias", 1),
    ("--no-weight-decay-params word_embeddings.weight --pipeline-model-parallel-size 2", 2),
    ("--clip-grad 0", 1),
    ("--eval-iters 0", 1),
    ("--seq-length=64", 1),
    ("--seed -0 --seed 5", 1),
    ("--split 100,0,0", 1),
    ("--loss-scale 0 --fp16", 1),
    ("--data-path 0.5 a 0.5 b", 1),
    ("--data-path a b", 1),
    ("--init-method-std 0", 1),
    ("--bf16 --fp32-residual-connection", 1),
    ("--num-query-groups 8", 1),
    ("--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 2", 2),
    ("--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4", 4),
    ("--kv-channels 32 --num-attention-heads 3", 1),
    ("--sequence-parallel", 1),
    ("--fp8-margin 1", 1),
    ("--fp4-recipe nvfp4", 1),
    ("--position-embedding-type alibi --square-alibi-mask --fill-neg-inf", 1),
    ("--num-experts 4 --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 2", 4),
    ("--num-experts 4 --moe-layer-freq ([0]*1+[1]*1)*2", 1),
    ("--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2", 2),
    ("--num-layer-list 1,3 --pipeline-model-parallel-size 2", 2),
    ("--num-layers 5 --pipeline-model-parallel-size 2", 2),
    ("--pipeline-model-parallel-layout Et|t|t|tL --pipeline-model-parallel-size 2", 2),
    ("--pipeline-model-parallel-layout E|tt|tt|L --pipeline-model-parallel-size 4", 4),
    (
        "--pipeline-model-parallel-layout Ett|ttmL --pipeline-model-parallel-size 2 --mtp-num-layers 1 "
        "--position-embedding-type rope",
        2,
    ),
    ("--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy no_shard", 2),
    ("--use-megatron-fsdp --zero-stage 3 --ckpt-format fsdp_dtensor", 2),
    ("--use-megatron-fsdp --megatron-fsdp-main-params-dtype fp32 --megatron-fsdp-main-grads-dtype auto", 2),
    ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", 2),
    ("--megatron-fsdp-grad-comm-dtype auto", 2),
    ("--use-custom-fsdp --megatron-fsdp-grad-comm-dtype bf16", 2),
    ("--num-experts 4 --moe-device-level-aux-loss-coeff 0.05 --expert-model-parallel-size 2", 2),
    ("--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2", 4),
    ("--swiglu --use-fused-swiglu --normalization RMSNorm --use-fused-rmsnorm", 1),
    ("--weight-decay-incr-style cosine --start-weight-decay 0.1 --end-weight-decay 0.1", 1),
    ("~train-iters --train-samples 100 --lr-warmup-samples 10 --lr-decay-samples 90", 1),
    ("--use-rotary-position-embeddings --no-position-embedding", 1),
    ("--vocab-size 500 --padded-vocab-size 512", 1),
]


@pytest.mark.parametrize("row", BAD, ids=[row[0] for row in BAD])
def test_a_bad_line_is_refused_by_the_finding_that_names_the_fault_and_no_other(row):
    """Each bad line of `BAD` gives exactly the findings that begin as listed."""
    change, world_size, *blamed = row
    findings = reading(change, world_size).findings
    starts = [start if ": " in start else f"{start}: " for start in blamed]
    assert [str(finding)[: len(start)] for finding, start in zip(findings, starts, strict=True)] == starts


@pytest.mark.parametrize("change, world_size", GOOD, ids=[row[0] for row in GOOD])
def test_a_near_miss_passes(change, world_size):
    """Each line of `GOOD`, close to a bad one, gives no error."""
    assert reading(change, world_size).errors == []


def test_all_faults_are_said_at_once_and_none_twice():
    """Five different mistakes on one command line are each reported once."""
    errors = reading("--num-layer 4 --bf16 --fp16 --lr -1 --optimizer soap --tensor-model-parallel-size 8", 8).errors
    for blamed in ("--num-layer:", "--fp16", "--lr -1", "--optimizer soap", "--num-attention-heads 4"):
        assert sum(blamed in error for error in errors) == 1, (blamed, errors)


@pytest.mark.parametrize(
    "asked, instead",
    [
        ("--use-megatron-fsdp", "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads"),
        ("--use-torch-fsdp2", "--zero-stage 2"),
    ],
)
def test_the_fix_for_cut_weights_on_a_pipeline_is_accepted(asked, instead):
    """Each way to ask for ZeRO stage 3 on a pipeline is refused with a fix, and the flags of the fix are accepted."""
    (error,) = reading(f"--pipeline-model-parallel-size 2 {asked}", 4).errors
    assert error.startswith(asked) and instead.removeprefix(f"{asked} ") in error
    assert reading(f"--pipeline-model-parallel-size 2 {instead}", 4).errors == []


def test_a_value_that_nobody_knows_is_answered_by_those_that_work():
    """An unknown value of a flag is answered by the values that work, refused ones left out."""
    (error,) = reading("--optimizer nosuch").errors
    assert "adam, sgd, muon" in error and "soap" not in error
    (error,) = reading("--optimizer soap").errors
    assert "use adam, sgd, muon" in error


def test_a_wrong_value_does_not_blame_the_flags_that_depend_on_it():
    """A wrong size is one error, without errors about values derived from it."""
    assert len(reading("--hidden-size 0").errors) == 1
    assert len(reading("--tensor-model-parallel-size x", 2).errors) == 1


def test_an_abbreviation_is_refused_and_the_full_names_are_suggested():
    """`--num-layer` is an error that suggests --num-layers."""
    (error,) = reading("--num-layer 4").errors
    assert "--num-layers" in error
