"""Compressed attention, tables of experts and streams under a layout that the recorded case has not."""

import numpy as np

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import STEPS, train

MODEL = (
    f"{TINY} --global-batch-size 8 --multi-latent-attention --q-lora-rank 12 --kv-lora-rank 8 --qk-head-dim 8 "
    "--qk-pos-emb-head-dim 4 --qk-layernorm --compress-ratios 4 4 --sliding-window-size 5 --o-groups 2 "
    "--o-lora-rank 6 --original-seq-len 8 "
    "--enable-dsa-indexer --index-n-heads 4 --index-head-dim 8 --index-topk 2 --position-embedding-type deepseek4 "
    "--normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0 "
    "--enable-mhc --hc-mult 2 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 "
    "--moe-router-score-function sqrtsoftplus --moe-router-load-balancing-type none --n-hash-layers 3 "
    "--moe-token-dispatcher-type alltoall --mtp-num-layers 1 --untie-embeddings-and-output-weights"
)


def test_experts_on_ranks_of_their_own():
    """Losses, the indexer's and those of a further token included, are one rank's."""
    (alone,) = run(1, train, f"{MODEL} {STEPS}")
    layout = "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"
    both = run(2, train, f"{MODEL} {STEPS} {layout}")
    for found in both:
        np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-5)
        np.testing.assert_allclose(found.gradient_norms, alone.gradient_norms, rtol=1e-4)
