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
size SEQ_LENGTH          256    4096
size MAX_POSITIONS       256    32768
size VOCAB_SIZE          511    31999    # the null tokenizer of a plan adds one

size WORLD               2      64       # ranks that the plan is for
size TP                  1      1
size PP                  1      4
size CP                  1      1
size EP                  2      8
size MICRO_BATCH_SIZE    4      1
size GLOBAL_BATCH_SIZE   16     256
size TRAIN_ITERS         200    500000
size LR                  3e-3   1e-4
size MIN_LR              3e-4   1e-5
size WARMUP_ITERS        20     500

MODEL_ARGS=(
    --num-layers "$NUM_LAYERS"
    --hidden-size "$HIDDEN_SIZE"
    --num-attention-heads "$HEADS"
    --group-query-attention
    --num-query-groups "$QUERY_GROUPS"
    --kv-channels "$HEAD_SIZE"
    --ffn-hidden-size "$FFN_HIDDEN_SIZE"
    --seq-length "$SEQ_LENGTH"
    --max-position-embeddings "$MAX_POSITIONS"
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-5
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --init-method-std 0.02
)
MOE_ARGS=(
    --num-experts "$NUM_EXPERTS"
    --moe-router-topk "$TOPK"
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 0.02
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
)
TRAINING_ARGS=(
    --micro-batch-size "$MICRO_BATCH_SIZE"
    --global-batch-size "$GLOBAL_BATCH_SIZE"
    --train-iters "$TRAIN_ITERS"
    --lr "$LR"
    --min-lr "$MIN_LR"
    --lr-decay-style cosine
    --lr-warmup-iters "$WARMUP_ITERS"
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
    --use-distributed-optimizer
)

train_or_plan "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${TRAINING_ARGS[@]}" "$@"
