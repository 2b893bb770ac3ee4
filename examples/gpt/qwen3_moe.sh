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
size SEQ_LENGTH          256    4096
size MAX_POSITIONS       256    40960
size VOCAB_SIZE          511    151935   # the null tokenizer of a plan adds one

size WORLD               2      256      # ranks that the plan is for
size TP                  1      1
size PP                  1      4
size CP                  1      1
size EP                  2      32
size MICRO_BATCH_SIZE    4      1
size GLOBAL_BATCH_SIZE   16     1024
size TRAIN_ITERS         200    100000
size LR                  3e-3   4e-4
size MIN_LR              3e-4   4e-5
size WARMUP_ITERS        20     2000

MODEL_ARGS=(
    --num-layers "$NUM_LAYERS"
    ${NOOP_LAYERS:+--noop-layers "$NOOP_LAYERS"}
    --hidden-size "$HIDDEN_SIZE"
    --num-attention-heads "$HEADS"
    --group-query-attention
    --num-query-groups "$QUERY_GROUPS"
    --kv-channels "$HEAD_SIZE"
    --qk-layernorm
    --ffn-hidden-size "$FFN_HIDDEN_SIZE"
    --seq-length "$SEQ_LENGTH"
    --max-position-embeddings "$MAX_POSITIONS"
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --init-method-std 0.02
)
MOE_ARGS=(
    --num-experts "$NUM_EXPERTS"
    --moe-ffn-hidden-size "$EXPERT_HIDDEN_SIZE"
    --moe-router-topk "$TOPK"
    --norm-topk-prob
    --moe-router-load-balancing-type global_aux_loss
    --moe-aux-loss-coeff 0.001
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
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
)

train_or_plan "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${TRAINING_ARGS[@]}" "$@"
