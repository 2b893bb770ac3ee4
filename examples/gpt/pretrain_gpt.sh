#!/usr/bin/env bash
# Pre-train a GPT with Megatron's flags. Without arguments: a small model on Python's own library, on two processes.
#
#   bash examples/gpt/pretrain_gpt.sh [more Megatron flags]
#
#   DEVICE=CPU|Ascend   NPROC=processes   TP= PP= CP= sizes   CORPUS=dir-or-file: your own text   OUTPUT=dir: one run's
#
# On several hosts start it on each, with a directory OUTPUT that all of them see and NPROC processes a host:
#
#   NNODES=hosts   NODE_RANK=0, 1, ... (0 on the master)   MASTER_ADDR=the master's address   MASTER_PORT=its free port
#
# --load BASE --use-checkpoint-args: a model that is there already, in its own shape. PROMPT=text is continued at the end;
# empty: none.
# To train your own model, replace the blocks below by your script's. With --data-path PREFIX nothing is prepared.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
if [ ! -e "$HERE/pretrain_gpt.py" ]; then                 # a copy of this script: it stays with what pip has installed
    OUTPUT=${OUTPUT:-$HERE/output}
    ROOT=$(python -c 'import importlib.util as u, os; print(os.path.dirname(os.path.dirname(u.find_spec("mapping").origin)))') \
        || { echo "error: python finds no mapping: activate the environment of pip install -e" >&2; exit 2; }
    HERE=$ROOT/examples/gpt
fi

case " $* " in *" --help "*) exec python "$HERE/pretrain_gpt.py" --help ;; esac
DEVICE=${DEVICE:-CPU}
for SIZE in NPROC TP PP CP NNODES NODE_RANK; do
    case ${!SIZE:-1} in *[!0-9]*) echo "error: $SIZE=${!SIZE}: must be a whole number" >&2; exit 2 ;; esac
done
TP=${TP:-}; PP=${PP:-1}; CP=${CP:-1}
# Two processes unless told otherwise; with neither TP nor NPROC they share each layer.
NPROC=${NPROC:-$(( ${TP:-1} * PP * CP > 2 ? ${TP:-1} * PP * CP : 2 ))}
TP=${TP:-$(( PP * CP == 1 ? NPROC : 1 ))}
NNODES=${NNODES:-1}; NODE_RANK=${NODE_RANK:-0}
if [ "$NNODES" != 1 ]; then : "${MASTER_ADDR:?set it to the address by which the other hosts reach the one of NODE_RANK=0}"; fi
OUTPUT=${OUTPUT:-$ROOT/output}
DATA_PREFIX=$OUTPUT/corpus/corpus_text_document
case " $* " in
    *" --load "* | *" --save "* | *" --overwrite-save "*) ;;
    *)  if [ -e "$OUTPUT/latest_checkpointed_iteration.txt" ]; then   # said before data are prepared
            echo "error: $OUTPUT has iteration $(cat "$OUTPUT/latest_checkpointed_iteration.txt") of an earlier run:" \
                "start with OUTPUT=another-directory, or add --load $OUTPUT to go on, or --overwrite-save to begin" \
                "anew, which moves what is there to $OUTPUT/earlier_1" >&2
            exit 2
        fi ;;
esac

if [ "$DEVICE" = Ascend ]; then
    export HCCL_BUFFSIZE=${HCCL_BUFFSIZE:-200}            # MB of buffer between two devices
    export HCCL_EXEC_TIMEOUT=${HCCL_EXEC_TIMEOUT:-600}    # seconds a device waits for another
    export HCCL_CONNECT_TIMEOUT=${HCCL_CONNECT_TIMEOUT:-600}
    export CUDA_DEVICE_MAX_CONNECTIONS=1
    # ASCEND_RT_VISIBLE_DEVICES chooses devices, e.g. '0,1'.
fi
export GLOG_v=${GLOG_v:-3}                                # MindSpore's own log: errors only

DISTRIBUTED_ARGS=(
    --worker_num="$(( NPROC * NNODES ))"
    --local_worker_num="$NPROC"
    --node_rank="$NODE_RANK"
    --master_addr="${MASTER_ADDR:-127.0.0.1}"
    --master_port="${MASTER_PORT:-8848}"
    --log_dir="$OUTPUT/msrun_log"
    --join=True
    --cluster_time_out=300
    --tail_worker_log="$(( NODE_RANK * NPROC ))"
)

GPT_MODEL_ARGS=(
    --num-layers 4
    --hidden-size 192
    --num-attention-heads 4
    --seq-length 256
    --max-position-embeddings 256
    --attention-dropout 0.0
    --hidden-dropout 0.0
)

case " $* " in *" --use-checkpoint-args "*) GPT_MODEL_ARGS=() ;; esac    # the checkpoint says all of it

TRAINING_ARGS=(
    --micro-batch-size 8
    --global-batch-size 16
    --optimizer adam
    --lr 3e-3
    --min-lr 3e-4
    --lr-decay-style cosine
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --init-method-std 0.02
    --seed 1234
)

case " $* " in
    *" --epochs "*) ;;
    *)  ITERS=" $* "; ITERS=${ITERS##* --train-iters }; ITERS=${ITERS%% *}
        case $ITERS in '' | *[!0-9]*) ITERS=120 ;; esac
        # Twenty steps of warm-up; a shorter run has a tenth of its own.
        TRAINING_ARGS+=(--train-iters 120 --lr-warmup-iters "$(( 10#$ITERS < 120 ? 10#$ITERS / 10 : 20 ))") ;;
esac

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size "$TP"
    --pipeline-model-parallel-size "$PP"
    --context-parallel-size "$CP"
    --device-target "$DEVICE"
)

DATA_ARGS=(
    --data-path "$DATA_PREFIX"
    --split 95,5,0
)

case " $* " in
    *" --tokenizer-type "*) ;;
    *)  DATA_ARGS+=(
            --tokenizer-type GPT2BPETokenizer
            --vocab-file "$HERE/vocab/vocab.json"
            --merge-file "$HERE/vocab/merges.txt"
        ) ;;
esac

EVAL_AND_LOGGING_ARGS=(
    --log-interval 1
    --save "$OUTPUT"
    --save-interval 120
    --eval-interval 60
    --eval-iters 4
)

case " $* " in
    *" --data-path "* | *" --train-data-path "* | *" --mock-data "*) PREPARES=; DATA_ARGS=("${DATA_ARGS[@]:2}") ;;
    *) PREPARES=yes ;;
esac

COMMAND=(
    msrun "${DISTRIBUTED_ARGS[@]}" "$HERE/pretrain_gpt.py"
    "${GPT_MODEL_ARGS[@]}"
    "${TRAINING_ARGS[@]}"
    "${MODEL_PARALLEL_ARGS[@]}"
    "${DATA_ARGS[@]}"
    "${EVAL_AND_LOGGING_ARGS[@]}"
    "$@"
)

# Checks the flags before it starts msrun, and shows the steps: on a terminal as one line that updates; every step's line
# is in $OUTPUT/msrun_log/worker_*.log and $OUTPUT/metrics.jsonl. Without it "${COMMAND[@]}" trains all the same.
# Ctrl-C ends it from its first moment on; what Python does by default is lost if it comes in the middle of an import.
launch() {
    PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} python -c 'import runpy, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
runpy.run_module("mapping.launch", run_name="__main__", alter_sys=True)' "$@"
}

trap 'exit 130' INT                                       # Ctrl-C ends this script, too
if [ "$PREPARES" ]; then
    launch --check "${COMMAND[@]}"                        # a mistake is said before minutes of preparing
    python "$HERE/prepare_data.py" ${CORPUS:+--corpus "$CORPUS"} --output-prefix "$OUTPUT/corpus/corpus"
fi
launch --end-with-parent "${COMMAND[@]}"

if [ "$NODE_RANK" != 0 ]; then exit; fi                   # the master has the results
python "$HERE/plot_loss.py" "$OUTPUT/metrics.jsonl"
PROMPT=${PROMPT-def }
if [ -z "$PROMPT" ]; then exit; fi
echo "Text of the model after the prompt '$PROMPT':"
python "$HERE/generate.py" --load "$OUTPUT" --prompt "$PROMPT" --max-new-tokens 120 --temperature 0.7 --top-k 40
