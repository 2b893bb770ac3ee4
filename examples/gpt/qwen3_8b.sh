#!/usr/bin/env bash
# A model of Qwen3-8B's shape ("Qwen3 Technical Report", 2025): dense, with head norms. How to run and plan it: recipe.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

#    variable            small  published
size NUM_LAYERS          4      36
size HIDDEN_SIZE         128    4096
size HEADS               4      32
size QUERY_GROUPS        2      8
size HEAD_SIZE           32     128
size FFN_HIDDEN_SIZE     384    12288
size MAX_POSITIONS       256    40960
size VOCAB_SIZE          511    151935   # the null tokenizer of a plan adds one

size WORLD               2      64       # ranks that the plan is for
size PP                  1      4
size GLOBAL_BATCH_SIZE   16     1024
size TRAIN_ITERS         200    1000000
size LR                  3e-3   3e-4
size MIN_LR              3e-4   3e-5
size WARMUP_ITERS        20     2000

TOKENIZER_TYPE=HuggingFaceTokenizer
MODEL_ARGS=(
    --group-query-attention
    --num-query-groups "$QUERY_GROUPS"
    --kv-channels "$HEAD_SIZE"
    --qk-layernorm
    --rotary-base 1000000
    --norm-epsilon 1e-6
    --init-method-std 0.02
)

train_or_plan "${MODEL_ARGS[@]}" "$@"
