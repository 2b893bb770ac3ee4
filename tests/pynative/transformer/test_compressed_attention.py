"""DeepSeek-V4's compressed attention, expert tables and residual streams on layouts that the recorded case
cannot have."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import STEPS, reference, train

MODEL = (
    f"{TINY} --global-batch-size 4 --multi-latent-attention --q-lora-rank 12 --kv-lora-rank 8 --qk-head-dim 8 "
    "--qk-pos-emb-head-dim 4 --qk-layernorm --compress-ratios 4 4 --sliding-window-size 5 --o-groups 2 "
    "--o-lora-rank 6 --original-seq-len 8 "
    "--enable-dsa-indexer --index-n-heads 4 --index-head-dim 8 --index-topk 2 --position-embedding-type deepseek4 "
    "--normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0 "
    "--enable-mhc --hc-mult 2 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 "
    "--moe-router-score-function sqrtsoftplus --moe-router-load-balancing-type none --n-hash-layers 3 "
    "--moe-token-dispatcher-type alltoall --mtp-num-layers 1 --untie-embeddings-and-output-weights"
)
EXPERTS = "--tensor-model-parallel-size 2 --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"


@pytest.mark.parametrize("layout", [EXPERTS, "--context-parallel-size 2"])
def test_ranks_of_their_own(layout):
    """ep2 and cp2: losses, norms and indexers' gradients are one rank's, with the indexer's loss and a predicted
    token's included."""
    alone, both = reference(MODEL), run(2, train, f"{MODEL} {STEPS} {layout}")
    indexers = [name for name in alone.gradients if "indexer" in name]
    assert indexers
    for name in indexers:
        size = np.abs(alone.gradients[name]).max()
        assert size
        np.testing.assert_allclose(both[0].gradients[name], alone.gradients[name], rtol=0, atol=1e-4 * size)
    for found in both:
        np.testing.assert_allclose(found.losses, alone.losses, rtol=1e-5)
        np.testing.assert_allclose(found.gradient_norms, alone.gradient_norms, rtol=1e-4)
