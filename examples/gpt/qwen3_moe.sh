#!/usr/bin/env bash
# A model of Qwen3-235B-A22B's shape ("Qwen3 Technical Report", 2025): 128 small experts a layer, of which 8 work, with
# probabilities that sum to one; head norms. How to run and plan it: recipe.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

#    variable            small  published
size NUM_LAYERS          4      96
size NOOP_LAYERS         ""     94,95    # 94 layers; the two that do nothing make equal stages
size HIDDEN_SIZE         128    4096
size HEADS               4      64
size QUERY_GROUPS        2      4
size HEAD_SIZE           32     128
size FFN_HIDDEN_SIZE     384    12288
size EXPERT_HIDDEN_SIZE  64     1536
size NUM_EXPERTS         16     128
size TOPK                4      8
size MAX_POSITIONS       256    40960
size VOCAB_SIZE          511    151935   # the null tokenizer of a plan adds one

size WORLD               2      256      # ranks that the plan is for
size PP                  1      4
size EP                  2      32
size GLOBAL_BATCH_SIZE   16     1024
size TRAIN_ITERS         200    100000
size LR                  3e-3   4e-4
size MIN_LR              3e-4   4e-5
size WARMUP_ITERS        20     2000

TOKENIZER_TYPE=HuggingFaceTokenizer
MODEL_ARGS=(
    ${NOOP_LAYERS:+--noop-layers "$NOOP_LAYERS"}
    --group-query-attention
    --num-query-groups "$QUERY_GROUPS"
    --kv-channels "$HEAD_SIZE"
    --qk-layernorm
    --rotary-base 1000000
    --norm-epsilon 1e-6
    --init-method-std 0.02
)
MOE_ARGS=(
    --moe-ffn-hidden-size "$EXPERT_HIDDEN_SIZE"
    --norm-topk-prob
    --moe-router-load-balancing-type global_aux_loss
    --moe-aux-loss-coeff 0.001
)
RECOMPUTE_ARGS=(
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
)

train_or_plan "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${RECOMPUTE_ARGS[@]}" "$@"
