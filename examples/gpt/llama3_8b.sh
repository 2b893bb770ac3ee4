#!/usr/bin/env bash
# A model of Llama 3 8B's shape ("The Llama 3 Herd of Models", 2024): dense, 4 queries to a key. How to run and plan it:
# recipe.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

#    variable            small  published
size NUM_LAYERS          4      32
size HIDDEN_SIZE         128    4096
size HEADS               4      32
size QUERY_GROUPS        2      8
size FFN_HIDDEN_SIZE     384    14336
size MAX_POSITIONS       256    8192
size SEQ_LENGTH          256    8192
size VOCAB_SIZE          511    128255   # the null tokenizer of a plan adds one

size WORLD               2      64       # ranks that the plan is for
size TP                  2      2
size PP                  1      1
size GLOBAL_BATCH_SIZE   16     512      # 4 million tokens
size TRAIN_ITERS         200    1000000
size LR                  3e-3   3e-4
size MIN_LR              3e-4   3e-6
size WARMUP_ITERS        20     8000

TOKENIZER_TYPE=HuggingFaceTokenizer
MODEL_ARGS=(
    --group-query-attention
    --num-query-groups "$QUERY_GROUPS"
    --rotary-base 500000
    --norm-epsilon 1e-5
    --init-method-std 0.02
    --sequence-parallel
)

train_or_plan "${MODEL_ARGS[@]}" "$@"
