"""Token dispatchers: tokens go to their experts and back on every layout; the sum over choices and shards, and every
gradient.

An expert's shard multiplies by a number of its own, so each rank knows what its tokens must have become.
"""

from typing import NamedTuple

import numpy as np
import pytest

from tests.support.ascend.stack import over_hccl
from tests.support.distributed import run
from tests.support.kernels import assert_close

EXPERTS, TOP, HIDDEN = 8, 3, 5
LENGTH, BATCH = 8, 3
"""(s, b) of each rank's tokens."""


class Layout(NamedTuple):
    ranks: int
    tp: int = 1
    ep: int = 1
    expert_tp: int = 1
    sequence_parallel: bool = False

    @property
    def flags(self) -> str:
        return f"--tensor-model-parallel-size {self.tp}" + " --sequence-parallel" * self.sequence_parallel


LAYOUTS = {
    "one rank": Layout(1),
    "ep2": Layout(2, ep=2),
    "ep4": Layout(4, ep=4),
    "etp2": Layout(2, tp=2, expert_tp=2, sequence_parallel=True),
    "ep2 x tp2 + sp": Layout(4, tp=2, ep=2, expert_tp=2, sequence_parallel=True),
    "ep4 over tp2 + sp": Layout(4, tp=2, ep=4, sequence_parallel=True),
    "ep2 x tp2": Layout(4, tp=2, ep=2, expert_tp=2),
    "tp2, whole experts": Layout(2, tp=2, ep=2),
}


def choices(kind: str, seed: int, tokens: int) -> np.ndarray:
    """Chosen experts [tokens, TOP] of one of KINDS, different ones for a token; -1: dropped."""
    generator = np.random.default_rng([seed, 3])
    experts = np.argsort(generator.random((tokens, EXPERTS)), axis=1)[:, :TOP].astype(np.int32)
    if kind == "few experts":
        experts = np.argsort(generator.random((tokens, TOP)), axis=1).astype(np.int32) + EXPERTS - TOP
    if kind in ("dropped", "padded"):
        experts[generator.random(experts.shape) < 0.4] = -1
    if kind == "a rank without":
        experts[:] = -1 if seed == 1 else experts
    if kind == "nothing":
        experts[:] = -1
    return experts


KINDS = ("spread", "few experts", "dropped", "padded", "a rank without", "nothing")


def weight(expert: np.ndarray, shard: int) -> np.ndarray:
    """The factor by which a shard of an expert multiplies its tokens; 0 for expert -1."""
    return np.where(expert < 0, 0.0, np.sin(1.0 + 2.0 * expert + 5.0 * shard))


def exchange(backend, layout: Layout, dispatcher: str, implementation: str, bf16: bool = False) -> list:
    """[(name, found, expected)] on this rank for every kind of choices, under this layout, dispatcher and kernels."""
    from pynative import kernels, parallel_state

    if implementation != "ascend":
        kernels.use(implementation)
    parallel_state.initialize_model_parallel(
        layout.tp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.expert_tp,
        backend=backend,
    )
    try:
        return [found for kind in KINDS for found in exchange_one(kind, layout, dispatcher, backend.rank, bf16)]
    finally:
        parallel_state.destroy_model_parallel()


def exchange_one(kind: str, layout: Layout, dispatcher: str, rank: int, bf16: bool) -> list:
    import mindspore
    from mindspore import from_numpy

    from pynative import parallel_state
    from pynative.moe.router import Routing
    from pynative.moe.token_dispatcher import MoETokenDispatcher
    from pynative.tape.autograd import backward, leaf, recording, take_gradient
    from tests.support.engine import config_of
    from tests.support.kernels import normal, tensor, values

    dtype = mindspore.bfloat16 if bf16 else mindspore.float32
    seed = rank if layout.sequence_parallel else rank // layout.tp
    config = config_of(f"{layout.flags} {FLAGS} --moe-token-dispatcher-type {dispatcher}", layout.ranks)
    config.moe_config.moe_pad_expert_input_to_capacity = kind == "padded"
    x, p = normal(LENGTH, BATCH, HIDDEN, seed=seed), normal(LENGTH * BATCH, TOP, seed=seed + 50)
    experts, dy = choices(kind, seed, LENGTH * BATCH), normal(LENGTH, BATCH, HIDDEN, seed=seed + 90)
    cell = MoETokenDispatcher.of(config.model_config)
    shard, mine = parallel_state.get_expert_tensor_parallel_rank(), parallel_state.get_expert_model_parallel_rank()
    own = mine * (EXPERTS // layout.ep) + np.arange(EXPERTS // layout.ep)
    with recording():
        hidden, probs = leaf(tensor(x, dtype)), leaf(tensor(p))
        routing = Routing(probs * 1.0, from_numpy(experts), LENGTH * BATCH if kind == "padded" else None)
        there = cell.dispatch(hidden * 1.0, routing)
        assert there.tokens.shape[0] == there.probs.shape[0] == there.counts.sum() and len(there.counts) == len(own)
        factor = tensor(np.repeat(weight(own, shard), there.counts)[:, None].astype(np.float32))
        weighted = there.tokens.astype(mindspore.float32) * factor * there.probs.expand_dims(1)
        output = cell.combine(weighted.astype(dtype), there)
        backward([output], [tensor(dy, dtype)])
    wide_x, wide_dy = (values(tensor(each, dtype)).reshape(-1, HIDDEN) for each in (x, dy))
    total = sum(weight(experts, j) for j in range(layout.expert_tp))
    expected = ((p * total).sum(1)[:, None] * wide_x, (p * total).sum(1)[:, None] * wide_dy)
    of_probs = total * (wide_x * wide_dy).sum(1)[:, None]
    assert output.dtype == dtype
    return [
        (f"{kind}: output", values(output).reshape(-1, HIDDEN), expected[0]),
        (f"{kind}: hidden", values(take_gradient(hidden)).reshape(-1, HIDDEN), expected[1]),
        (f"{kind}: probs", values(take_gradient(probs)), of_probs),
    ]


FLAGS = (
    f"--num-experts {EXPERTS} --moe-router-topk {TOP} --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
    "--seq-length 16 --max-position-embeddings 16 --micro-batch-size 2 --train-iters 2 --lr 1e-3 --vocab-size 60 "
    "--tokenizer-type NullTokenizer"
)


def check(ranks: list, tolerance: float) -> None:
    for rank, found in enumerate(ranks):
        for name, ours, expected in found:
            try:
                assert_close(ours, expected, tolerance)
            except AssertionError as error:
                raise AssertionError(f"rank {rank}, {name}: {error}") from None


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(layout, dispatcher):
    """Experts without tokens, ranks without tokens, dropped choices and padded experts: outputs and gradients
    to 1e-6."""
    check(run(LAYOUTS[layout].ranks, exchange, LAYOUTS[layout], dispatcher, "host"), 1e-6)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_in_bfloat16(dispatcher):
    """bfloat16 rows travel as such: outputs and gradients differ from the exact ones by rounding (2e-2)."""
    layout = LAYOUTS["ep2 x tp2 + sp"]
    check(run(layout.ranks, exchange, layout, dispatcher, "host", True), 2e-2)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
@pytest.mark.parametrize("backend", ["between hosts", "ops", "hccl"])
def test_over_every_transport(backend, dispatcher):
    """The dispatchers over TCP between hosts, with `ops` kernels, and over HCCL on doubles."""
    layout = LAYOUTS["ep2"]
    if backend == "hccl":
        found = run(layout.ranks, over_hccl, exchange, layout, dispatcher, "ascend")
    elif backend == "ops":
        found = run(layout.ranks, exchange, layout, dispatcher, "ops")
    else:
        found = run(layout.ranks, exchange, layout, dispatcher, "host", between_hosts=True)
    check(found, 1e-6)
