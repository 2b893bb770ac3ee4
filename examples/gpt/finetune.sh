#!/usr/bin/env bash
# From a HuggingFace model's folder to a fine-tuned one: an Alpaca jsonl becomes conversations in the model's own words,
# low-rank adapters (LoRA) or all weights are trained on them, the model answers a question, and is written as a
# HuggingFace folder again: OUTPUT/huggingface.
#
#   bash examples/gpt/finetune.sh MODEL [more Megatron flags]
#
#   DATA=FILE.jsonl: instruction, input and output in each line (default: instructions.jsonl beside this script)
#   ADAPTERS=yes|no: LoRA, or all weights   TEMPLATE=a name of --prompt-type (default: the tokenizer's chat template)
#   EPOCHS=  LR=  BATCH=conversations a step  SEQ_LENGTH=  QUESTION=what it is asked in the end
#   OUTPUT=dir   DEVICE= NPROC= TP= PP= CP= ...: pretrain_gpt.sh, which trains
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
export OUTPUT=${OUTPUT:-$ROOT/output/finetuned}
case " $* " in *" --help "*) sed -n '2,/^set /{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
MODEL=${1:-}
for FILE in config.json tokenizer_config.json; do
    if [ ! -f "$MODEL/$FILE" ]; then
        echo "error: ${MODEL:-MODEL}: has no $FILE; give the folder of a HuggingFace model, with its tokenizer, as the" \
            "first word" >&2
        exit 2
    fi
done
shift
DATA=${DATA:-$HERE/instructions.jsonl}
QUESTION=${QUESTION:-Who are you?}
SEQ_LENGTH=${SEQ_LENGTH:-1024}
case ${ADAPTERS:-yes} in
    yes) LR=${LR:-2e-4}
         TUNING_ARGS=(
             --lora-r 16
             --lora-alpha 32
             --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2
         ) ;;
    no)  LR=${LR:-1e-5}
         TUNING_ARGS=() ;;
    *)   echo "error: ADAPTERS=$ADAPTERS: must be yes or no" >&2
         exit 2 ;;
esac

TOKENIZER_ARGS=(
    --tokenizer-type PretrainedFromHF
    --tokenizer-name-or-path "$MODEL"
)
TEMPLATE_ARGS=(
    --prompt-type "${TEMPLATE:-chat_template}"
)
SFT_ARGS=(
    --stage sft
    --is-instruction-dataset
    --finetune
    --load "$MODEL"
    --use-checkpoint-args
    --seq-length "$SEQ_LENGTH"
    --no-pad-to-seq-lengths
    --data-path "$OUTPUT/data/conversations"
)
TRAINING_ARGS=(
    --epochs "${EPOCHS:-3}"
    --micro-batch-size 1
    --global-batch-size "${BATCH:-8}"
    --lr "$LR"
    --min-lr 0
    --lr-warmup-fraction 0.05
    --weight-decay 0.0
)

if [ "${NODE_RANK:-0}" = 0 ]; then                        # several hosts share OUTPUT: the master's data are everybody's
    mkdir -p "$OUTPUT/data"
    python -m mapping preprocess \
        --input "$DATA" \
        --output-prefix "$OUTPUT/data/conversations" \
        --handler-name AlpacaStyleInstructionHandler \
        --seq-length "$SEQ_LENGTH" \
        "${TOKENIZER_ARGS[@]}" "${TEMPLATE_ARGS[@]}"
else
    for _ in {1..600}; do                                 # seconds
        if [ -e "$OUTPUT/data/conversations_packed_labels_document.idx" ]; then break; fi
        sleep 1
    done
fi

PROMPT='' bash "$HERE/pretrain_gpt.sh" \
    "${SFT_ARGS[@]}" "${TRAINING_ARGS[@]}" "${TUNING_ARGS[@]}" "${TOKENIZER_ARGS[@]}" "${TEMPLATE_ARGS[@]}" "$@"

if [ "${NODE_RANK:-0}" != 0 ]; then exit; fi
echo "> $QUESTION"
python "$HERE/generate.py" --load "$OUTPUT" "${TEMPLATE_ARGS[@]}" --chat --prompt "$QUESTION" --max-new-tokens 100
python -m mapping convert --input "$OUTPUT" --output "$OUTPUT/huggingface" --to hf --tokenizer-model "$MODEL"
echo "Talk to it: python -m mapping generate --load $OUTPUT/huggingface ${TEMPLATE_ARGS[*]} --chat"
