"""Heads and widths that the tensor-parallel size does not divide (--unaligned-linear): shards of one shape, padded."""

import numpy as np
import pytest

from tests.support.checkpoint_jobs import check_taken_over
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import check_layout
from tests.support.pretraining import BATCHES, pretrain_tiny

HEADS = "--num-attention-heads 5 --kv-channels 8 --ffn-hidden-size 50"
GROUPS = "--num-attention-heads 6 --kv-channels 8 --group-query-attention --num-query-groups 3"
GATED = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
LATENT = (
    "--num-attention-heads 5 --multi-latent-attention --q-lora-rank 12 --kv-lora-rank 8 --qk-head-dim 8 "
    "--qk-pos-emb-head-dim 4 --v-head-dim 8"
)
EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 21 --moe-shared-expert-intermediate-size 19"
TP2, TP4 = (f"--unaligned-linear --tensor-model-parallel-size {size}" for size in (2, 4))
MODELS = {
    "biases, alibi": (f"{HEADS} --position-embedding-type alibi --attention-dropout 0.1", 4, TP4),
    "groups, gates, sinks": (
        f"{GROUPS} {GATED} --ffn-hidden-size 51 --qk-layernorm --softmax-type learnable --attention-output-gate",
        4,
        f"{TP2} --use-distributed-optimizer",
    ),
    "latent, experts": (
        f"{LATENT} {GATED} {EXPERTS} --moe-grouped-gemm --moe-layer-freq ([0]*1+[1]*1)",
        2,
        f"{TP2} --sequence-parallel",
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_trains_as_one_process(model):
    """Initial values, losses, every gradient, updates and optimizer states; of 5 heads on 4 ranks one rank has none."""
    flags, world, layout = MODELS[model]
    check_layout(f"{TINY} --global-batch-size 4 {flags}", world, layout)


def padding_of(backend, flags: str) -> tuple[int, float, float, int]:
    """(entries of padding in this rank's weights, their largest magnitude after two steps, logged norm of the weights,
    logged zeros of the gradient)."""
    from pynative.parameter import place_of
    from pynative.training.callbacks import Callback

    found = []

    class Look(Callback):
        def on_step_end(self, state):
            for parameter in state.model.get_parameters():
                values, part = parameter.asnumpy().copy(), place_of(parameter)
                for box in part.boxes:
                    values[box.in_shard] = 0
                found.append((part.padding, float(np.abs(values).max())))

    logged = "--log-params-norm --log-num-zeros-in-grad --untie-embeddings-and-output-weights --disable-bias-linear"
    metrics = pretrain_tiny(backend, f"{BATCHES} {flags} {logged}", callbacks=[Look()]).metrics
    counts, largest = zip(*found, strict=True)
    return sum(counts), max(largest), metrics["params_norm"], metrics["num_zeros"]


def test_padding_stays_zero_and_is_not_counted():
    """After two steps padding is zero, and the logged norm and number of zeros are one process's; the last of 4 ranks
    has padding in place of heads."""
    (alone,) = run(1, padding_of, HEADS)
    ranks = run(4, padding_of, f"{HEADS} {TP4}")
    assert alone[:2] == (0, 0.0)
    assert [rank[0] > 0 for rank in ranks] == [False, False, True, True]
    for _, largest, norm, zeros in ranks:
        assert largest == 0 and norm == pytest.approx(alone[2], rel=1e-6) and zeros == alone[3]


@pytest.mark.parametrize("is_sharded", [False, True])
def test_checkpoints_hold_no_padding(tmp_path, is_sharded):
    """Checkpoints pass to the bit between 4 ranks (one without a head), two replicas of 2 ranks, and one process."""
    layouts = [(4, TP4), (4, f"{TP2} --use-distributed-optimizer")]
    saving = layouts.pop(is_sharded)
    check_taken_over(saving, [(1, ""), *layouts], f"{HEADS} --swiglu --bf16", tmp_path)
