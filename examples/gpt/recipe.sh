# Sourced by the recipes: sizes that are environment variables, and a plan without devices.
#
#   bash examples/gpt/mixtral.sh [more Megatron flags]      train the small model on this machine
#   NUM_LAYERS=8 EP=4 NPROC=4 bash examples/gpt/mixtral.sh  with sizes of your own
#   SIZE=published PLAN=1 bash examples/gpt/mixtral.sh      what each rank of the published model needs, no device needed
#
# On the devices themselves give SIZE=published with NPROC, NNODES, ... as pretrain_gpt.sh explains them, your data, and
# TOKENIZER=the model's folder or tokenizer file. The small model has the example's own vocabulary without it.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SIZE=${SIZE:-small}
case $SIZE in small | published) ;; *) echo "SIZE=$SIZE: must be small or published" >&2; exit 2 ;; esac

# size NAME SMALL PUBLISHED: a variable that the environment may set.
size() {
    local value=$2
    if [ "$SIZE" = published ]; then value=$3; fi
    printf -v "$1" %s "${!1:-$value}"
}

# The sizes that all recipes have alike.
#    variable            small  published
size CP                  1      1
size MICRO_BATCH_SIZE    4      1

# train_or_plan FLAGS: what the recipe ends with. TP, PP, CP and NPROC are pretrain_gpt.sh's; FLAGS are what the model has
# of its own.
train_or_plan() {
    #    variable            small  published: of recipes that do not say it
    size SEQ_LENGTH          256    4096
    size TP                  1      1
    local tokenizer=()
    if [ -n "${TOKENIZER:-}" ]; then
        tokenizer=(--tokenizer-type "$TOKENIZER_TYPE" --tokenizer-model "$TOKENIZER")
    elif [ -n "${PLAN:-}" ]; then
        tokenizer=(--tokenizer-type NullTokenizer --vocab-size "$VOCAB_SIZE")
    elif [ "$SIZE" = published ]; then
        echo "error: TOKENIZER: give the folder or file of the model's $TOKENIZER_TYPE" >&2
        exit 2
    fi
    local model=(
        --num-layers "$NUM_LAYERS"
        --hidden-size "$HIDDEN_SIZE"
        --num-attention-heads "$HEADS"
        --ffn-hidden-size "$FFN_HIDDEN_SIZE"
        --seq-length "$SEQ_LENGTH"
        --max-position-embeddings "$MAX_POSITIONS"
        --position-embedding-type rope
        --normalization RMSNorm
        --swiglu
        --disable-bias-linear
        --untie-embeddings-and-output-weights
        --attention-dropout 0.0
        --hidden-dropout 0.0
    )
    if [ -n "${NUM_EXPERTS:-}" ]; then
        model+=(
            --num-experts "$NUM_EXPERTS"
            --moe-router-topk "$TOPK"
            --moe-grouped-gemm
            --moe-token-dispatcher-type alltoall
            --expert-model-parallel-size "$EP"
        )
    fi
    local training=(
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
    if [ -n "${PLAN:-}" ]; then
        local grid=(
            --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" --context-parallel-size "$CP"
        )
        export PYTHONPATH="$HERE/../..${PYTHONPATH:+:$PYTHONPATH}"
        exec python -m mapping explain --world-size "$WORLD" -- \
            "${grid[@]}" "${tokenizer[@]}" "${model[@]}" "${training[@]}" "$@"
    fi
    export TP PP CP NPROC="${NPROC:-$WORLD}"
    exec bash "$HERE/pretrain_gpt.sh" "${tokenizer[@]}" "${model[@]}" "${training[@]}" "$@"
}
