"""The six command lines that an option is tried beside."""

import re
from typing import NamedTuple

COMMON = (
    "--seq-length 16 --max-position-embeddings 32 --micro-batch-size 2 --lr 1e-2 --log-interval 1 "
    "--vocab-size 60 --padded-vocab-size 64 --tokenizer-type NullTokenizer --init-method-std 0.2 "
    "--split 50,50,0 --data-path DATA --clip-grad 0.7 --weight-decay 0.1"
)


FOLDER = re.compile(r"(--save|--load) [\w/]+")


class Model(NamedTuple):
    """One of them."""

    flags: str
    """With DATA where a corpus is, and SAVE where a folder is."""
    ranks: int = 1


ONE = "--train-iters 1 --eval-iters 0"
LLAMA = (
    f"{ONE} --num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 48 --normalization RMSNorm "
    "--swiglu --position-embedding-type rope --group-query-attention --num-query-groups 2 --disable-bias-linear "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0"
)
MODELS = {
    "gpt": Model(
        "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --attention-dropout 0.1 --hidden-dropout 0.1 "
        "--train-iters 3 --eval-iters 1 --eval-interval 1 --global-batch-size 4 --lr-warmup-iters 1 "
        "--lr-decay-iters 3 --min-lr 1e-3 --save SAVE --save-interval 1"
    ),
    "llama": Model(f"{LLAMA} --bf16 --global-batch-size 4 --reset-attention-mask --eod-mask-loss"),
    "experts": Model(
        f"{LLAMA} --fp16 --initial-loss-scale 64 --global-batch-size 4 --num-experts 4 --moe-router-topk 2 "
        "--moe-aux-loss-coeff 0.1 --moe-expert-capacity-factor 1 --moe-grouped-gemm --hot-expert-num 1"
    ),
    "latent": Model(
        f"{ONE} --num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 48 --normalization RMSNorm "
        "--multi-latent-attention --q-lora-rank 8 --kv-lora-rank 8 --qk-head-dim 8 --qk-pos-emb-head-dim 8 "
        "--v-head-dim 8 --position-embedding-type rope --mtp-num-layers 1 --num-experts 4 --moe-layer-freq [0,1] "
        "--moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-shared-expert-intermediate-size 8 "
        "--attention-dropout 0 --hidden-dropout 0 --global-batch-size 4 --moe-aux-loss-coeff 0.1 "
        "--rope-scaling-type yarn --rope-scaling-factor 2 --original-max-position-embeddings 256 --rotary-base 100"
    ),
    "tensor parallel": Model(
        f"{LLAMA} --tensor-model-parallel-size 2 --sequence-parallel --global-batch-size 4 "
        "--use-sandwich-norm --optimizer muon --profile",
        ranks=2,
    ),
    "pipeline": Model(
        f"{LLAMA} --num-layers 4 --pipeline-model-parallel-size 2 --bf16 --use-distributed-optimizer "
        "--overlap-grad-reduce --global-batch-size 8 --recompute-granularity full --recompute-method uniform "
        "--recompute-num-layers 1",
        ranks=4,
    ),
}
"""By name."""


def line(name: str, change: str = "") -> list[str]:
    """The command line of a model with `change` behind it; a word `~x` in it takes flag `--x` and its value out."""
    words, added = f"{COMMON} {MODELS[name].flags}".split(), FOLDER.sub(r"\1 SAVE/other", change).split()
    for word in [word for word in added if word.startswith("~")]:
        added.remove(word)
        if f"--{word[1:]}" in words:
            position = words.index(f"--{word[1:]}")
            del words[position : position + 2]
    return words + added
