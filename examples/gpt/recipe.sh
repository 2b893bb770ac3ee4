# Sourced by the recipes: sizes that are environment variables, and a plan without devices.
#
#   bash examples/gpt/mixtral.sh [more Megatron flags]      train the small model on this machine
#   NUM_LAYERS=8 EP=4 NPROC=4 bash examples/gpt/mixtral.sh  with sizes of your own
#   SIZE=published PLAN=1 bash examples/gpt/mixtral.sh      what each rank of the published model needs, no device needed
#
# On the devices themselves give SIZE=published with NPROC, NNODES, ... as pretrain_gpt.sh explains them, and your data.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SIZE=${SIZE:-small}
case $SIZE in small | published) ;; *) echo "SIZE=$SIZE: must be small or published" >&2; exit 2 ;; esac

# size NAME SMALL PUBLISHED: a variable that the environment may set.
size() {
    local value=$2
    if [ "$SIZE" = published ]; then value=$3; fi
    printf -v "$1" %s "${!1:-$value}"
}

# train_or_plan FLAGS: what the recipe ends with. TP, PP, CP and NPROC are pretrain_gpt.sh's.
train_or_plan() {
    local grid=(
        --tensor-model-parallel-size "$TP" --pipeline-model-parallel-size "$PP" --context-parallel-size "$CP"
        --expert-model-parallel-size "$EP" --tokenizer-type NullTokenizer --vocab-size "$VOCAB_SIZE"
    )
    if [ -n "${PLAN:-}" ]; then
        cd "$HERE/../.."
        exec python -m mapping.explain --world-size "$WORLD" -- "${grid[@]}" "$@"
    fi
    export TP PP CP NPROC="${NPROC:-$WORLD}"
    exec bash "$HERE/pretrain_gpt.sh" --expert-model-parallel-size "$EP" "$@"
}
