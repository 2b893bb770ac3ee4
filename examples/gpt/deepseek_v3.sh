#!/usr/bin/env bash
# A model of DeepSeek-V3's shape ("DeepSeek-V3 Technical Report", 2024): latent attention; after three dense layers 256
# experts in 8 groups, of which 4 count, and one shared expert; a bias on each expert's score instead of a large auxiliary
# loss; one further token is predicted. How to run and plan it: recipe.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

#    variable            small  published
size NUM_LAYERS          4      61
size DENSE_LAYERS        1      3        # the first ones
size LAST_STAGE_LAYERS   ""     1        # beside the further token's layer and the head; 15 stages have 4
size HIDDEN_SIZE         128    7168
size HEADS               4      128
size Q_LORA_RANK         48     1536
size KV_LORA_RANK        32     512
size NOPE_HEAD_SIZE      32     128
size ROPE_HEAD_SIZE      16     64
size V_HEAD_SIZE         32     128
size FFN_HIDDEN_SIZE     384    18432
size EXPERT_HIDDEN_SIZE  64     2048
size SHARED_HIDDEN_SIZE  64     2048
size NUM_EXPERTS         16     256
size TOPK                4      8
size GROUPS_OF_EXPERTS   4      8
size GROUPS_CHOSEN       2      4
size MAX_POSITIONS       256    4096
size VOCAB_SIZE          511    129279   # the null tokenizer of a plan adds one

size WORLD               2      2048     # ranks that the plan is for
size PP                  1      16
size EP                  2      64
size GLOBAL_BATCH_SIZE   16     15360
size TRAIN_ITERS         200    235000   # 14.8 thousand billion tokens
size LR                  3e-3   2.2e-4
size MIN_LR              3e-4   2.2e-5
size WARMUP_ITERS        20     2000

TOKENIZER_TYPE=HuggingFaceTokenizer
MODEL_ARGS=(
    ${LAST_STAGE_LAYERS:+--decoder-last-pipeline-num-layers "$LAST_STAGE_LAYERS"}
    --multi-latent-attention
    --q-lora-rank "$Q_LORA_RANK"
    --kv-lora-rank "$KV_LORA_RANK"
    --qk-head-dim "$NOPE_HEAD_SIZE"
    --qk-pos-emb-head-dim "$ROPE_HEAD_SIZE"
    --v-head-dim "$V_HEAD_SIZE"
    --qk-layernorm
    --rope-type rope
    --norm-epsilon 1e-6
    --init-method-std 0.006
    --mtp-num-layers 1
    --mtp-loss-scaling-factor 0.3
)
MOE_ARGS=(
    --moe-layer-freq "([0]*$DENSE_LAYERS+[1]*$((NUM_LAYERS - DENSE_LAYERS)))"
    --moe-ffn-hidden-size "$EXPERT_HIDDEN_SIZE"
    --moe-shared-expert-intermediate-size "$SHARED_HIDDEN_SIZE"
    --moe-router-score-function sigmoid
    --moe-router-num-groups "$GROUPS_OF_EXPERTS"
    --moe-router-group-topk "$GROUPS_CHOSEN"
    --moe-router-topk-scaling-factor 2.5
    --moe-router-enable-expert-bias
    --moe-router-bias-update-rate 0.001
    --moe-router-load-balancing-type seq_aux_loss
    --moe-aux-loss-coeff 0.0001
    --moe-router-dtype fp32
)
# Layers are computed again whole, so that a rank needs 24 GiB. The report computes norms, up projections and experts'
# activations again (--recompute-granularity selective --recompute-modules layernorm mla_up_proj moe_act), which is 84
# GiB here: of a token a layer then keeps 308 KB (its rows for 8 experts 115, gate and up 66, what attention gives 33,
# the router's float32 input 30 ...), a stage has 4 layers and 15 micro-batches. The report's run kept such rows in 8
# bits. Between the two, with modules moe mlp core_attn layernorm mla_up_proj: 38 GiB.
RECOMPUTE_ARGS=(
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
)

train_or_plan "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${RECOMPUTE_ARGS[@]}" "$@"
