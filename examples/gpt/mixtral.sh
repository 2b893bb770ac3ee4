#!/usr/bin/env bash
# A model of Mixtral 8x7B's shape ("Mixtral of Experts", Jiang et al., 2024): in every layer 8 experts, of which 2 work.
# How to run and plan it: recipe.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

#    variable            small  published
size NUM_LAYERS          4      32
size HIDDEN_SIZE         128    4096
size HEADS               4      32
size QUERY_GROUPS        2      8
size HEAD_SIZE           32     128
size FFN_HIDDEN_SIZE     256    14336
size NUM_EXPERTS         8      8
size TOPK                2      2
size MAX_POSITIONS       256    32768
size VOCAB_SIZE          511    31999    # the null tokenizer of a plan adds one

size WORLD               2      64       # ranks that the plan is for
size PP                  1      4
size EP                  2      8
size GLOBAL_BATCH_SIZE   16     256
size TRAIN_ITERS         200    500000
size LR                  3e-3   1e-4
size MIN_LR              3e-4   1e-5
size WARMUP_ITERS        20     500

TOKENIZER_TYPE=Llama2Tokenizer
MODEL_ARGS=(
    --group-query-attention
    --num-query-groups "$QUERY_GROUPS"
    --kv-channels "$HEAD_SIZE"
    --rotary-base 1000000
    --norm-epsilon 1e-5
    --init-method-std 0.02
)
MOE_ARGS=(
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 0.02
)

train_or_plan "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "$@"
