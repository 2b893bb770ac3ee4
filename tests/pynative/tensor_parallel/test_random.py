"""Random streams of a job (RNGStateTracer): which numbers repeat, which differ between ranks, and that order does not
matter."""

from itertools import chain
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest

from parallel_core.context import SequenceLayout, as_array
from pynative import parallel_state
from pynative.step_position import StepPosition, set_step_position
from pynative.tensor_parallel.random import (
    DATA_PARALLEL_RNG,
    EXPERT_PARALLEL_RNG,
    MODEL_PARALLEL_RNG,
    RNGStateTracer,
)
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job, rank_of_a_job


def drawn(rank: int, world_size: int = 8, micro_batch: int = 0, **sizes) -> dict[str, tuple]:
    """Stream name -> its first two keys, on this rank of a job of these sizes."""
    with rank_of_a_job(rank, world_size, **sizes):
        tracer = RNGStateTracer(7)
        set_step_position(StepPosition(micro_batch=micro_batch))
        keys = {}
        for name in (DATA_PARALLEL_RNG, MODEL_PARALLEL_RNG, EXPERT_PARALLEL_RNG):
            with tracer.rng_fork(name):
                keys[name] = (tracer.next_key(), tracer.next_key())
        return keys


# Sizes, two ranks that differ in one coordinate, and for which streams their keys differ.
PAIRS = [
    ({"tensor_model_parallel_size": 2}, 0, 1, {MODEL_PARALLEL_RNG, EXPERT_PARALLEL_RNG}),
    ({"context_parallel_size": 2}, 0, 1, {MODEL_PARALLEL_RNG, EXPERT_PARALLEL_RNG}),
    ({"expert_model_parallel_size": 2}, 0, 1, {EXPERT_PARALLEL_RNG}),
    ({"pipeline_model_parallel_size": 2}, 0, 4, {DATA_PARALLEL_RNG, MODEL_PARALLEL_RNG, EXPERT_PARALLEL_RNG}),
    ({}, 0, 1, set()),
]


@pytest.mark.parametrize(("sizes", "one", "other", "differing"), PAIRS)
def test_streams_differ_where_activations_are_cut(sizes, one, other, differing):
    """The streams that PAIRS lists for two ranks differ, as activations are cut there; the others agree, as activations
    are replicated."""
    here, there = drawn(one, **sizes), drawn(other, **sizes)
    assert {name for name in here if not set(here[name]) & set(there[name])} == differing
    assert all(here[name] == there[name] for name in here.keys() - differing)


def test_no_key_is_given_twice():
    """Different streams, draws, micro-batches and layers' masks never get the same key."""
    tracer = RNGStateTracer(7)
    keys = [key for micro_batch in (0, 1) for pair in drawn(0, micro_batch=micro_batch).values() for key in pair]
    keys += [tracer.key(0, 0), tracer.key(1, 0), (*tracer.key(1, 0), 0, 1)]
    assert len(set(keys)) == len(keys)


def test_chunks_of_a_stage_differ():
    """Two virtual stages of a rank, which run the same micro-batch, draw different keys."""
    with rank_of_a_job(0, 2, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2):
        tracer = RNGStateTracer(7)
        first = tracer.next_key()
        parallel_state.set_virtual_pipeline_model_parallel_rank(1)
        assert tracer.next_key() != first


def test_what_a_micro_batch_draws_does_not_depend_on_the_others_in_flight():
    """A micro-batch draws the same keys whichever others are in flight, in any order, as GPipe and 1F1B have them."""

    def keys_by_order(order: list[int]) -> dict[int, list]:
        tracer, keys = RNGStateTracer(7), {}
        for micro_batch in order:
            set_step_position(StepPosition(micro_batch=micro_batch))
            keys[micro_batch] = [tracer.next_key(), tracer.next_key()]
        return keys

    together = keys_by_order([0, 1, 2, 3])
    assert keys_by_order([3, 1, 0, 2]) == together
    assert keys_by_order([2])[2] == together[2]


def test_a_forward_is_repeated_with_the_same_numbers():
    """Stream states kept before a forward and restored after others ran repeat its keys, as recompute does."""
    tracer = RNGStateTracer(7)
    set_step_position(StepPosition(iteration=5, micro_batch=1))

    def forward() -> list:
        with tracer.rng_fork():
            return [tracer.key(3, 1), tracer.next_key(), tracer.generator().random()]

    tracer.next_key()
    states = tracer.get_states()
    before = forward()
    assert forward() != before
    set_step_position(StepPosition(iteration=5, micro_batch=2))
    forward()
    tracer.set_states(states)
    assert forward() == before


def test_forks_nest_and_end():
    """Leaving `fork`, also by an error, goes back to the stream from before; drawing from one stream moves no other."""
    tracer = RNGStateTracer(7)
    outside = tracer.next_key()
    with pytest.raises(KeyError), tracer.fork(MODEL_PARALLEL_RNG):
        with tracer.fork(EXPERT_PARALLEL_RNG):
            tracer.next_key()
        inside = tracer.next_key()
        raise KeyError
    assert inside[-1] == 1 and tracer.next_key()[:-1] == outside[:-1]


def test_a_stream_of_ones_own():
    """A stream added by a script has its seed; a name or seed that is taken, an unknown stream, and one from before
    `reset` are errors."""
    tracer = RNGStateTracer(7)
    tracer.add("augmentation", 99)
    with tracer.rng_fork("augmentation"):
        assert tracer.next_key()[0] == 99
    for name, seed, message in [("augmentation", 3, "exists already"), ("other", 99, "has the seed 99")]:
        with pytest.raises(ValueError, match=message):
            tracer.add(name, seed)
    with pytest.raises(ValueError, match="'noise' does not exist"), tracer.rng_fork("noise"):
        pass
    tracer.reset()
    with pytest.raises(ValueError, match="does not exist"), tracer.rng_fork("augmentation"):
        pass


def test_generators_differ_by_draw_and_repeat_by_position():
    """`generator()` gives other random numbers at each draw, and the same at the same place of the step."""
    one, other = RNGStateTracer(7), RNGStateTracer(7)
    first, second = one.generator().random(4), one.generator().random(4)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(other.generator().random(4), first)


# Hidden dropout ------------------------------------------------------------------------------------------------------

LAYOUTS = [
    (2, "--tensor-model-parallel-size 2"),
    (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    (4, "--tensor-model-parallel-size 4 --sequence-parallel"),
    (2, "--context-parallel-size 2"),
    (4, "--context-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel"),
    (4, "--context-parallel-size 4 --context-parallel-algo ulysses_cp_algo"),
    (
        8,
        "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2 "
        "--tensor-model-parallel-size 2 --sequence-parallel",
    ),
]


@pytest.mark.parametrize(("world", "flags"), LAYOUTS)
def test_every_position_is_on_one_rank(world, flags):
    """`positions` of all ranks cover the sequence once between tensor-parallel regions; without sequence parallelism,
    once for each tensor-parallel rank."""
    config = config_of(f"{TINY} {flags}", world)
    parallel = config.parallel_config
    local, layout = [], SequenceLayout.of(parallel)
    for rank in range(world):
        backend = SimpleNamespace(rank=rank, world_size=world, prepare=len)
        with job(backend, config):
            ranks = (parallel_state.get_context_parallel_rank(), parallel_state.get_tensor_model_parallel_rank())
            local.append(as_array(layout.positions(layout.local_length(16), *ranks)).tolist())
    copies = 1 if parallel.sequence_parallel else parallel.tensor_model_parallel_size
    assert sorted(chain.from_iterable(local)) == sorted(list(range(16)) * copies)
    assert copies == 1 or local[0] == local[1]


def layer_mask(backend, flags: str) -> np.ndarray:
    """This rank's mask of the dropout after a layer's attention."""
    from parallel_core.blocks.layer import Layer
    from pynative.transformer.enums import AttnMaskType
    from pynative.transformer.layer import ParallelTransformerLayer

    config = config_of(f"{TINY} --hidden-dropout 0.5 {flags}", backend.world_size)
    with job(backend, config):
        layer = ParallelTransformerLayer(config.model_config, 1, AttnMaskType.causal)
        layer.set_train(True)
        pieces = backend.world_size if config.parallel_config.sequence_parallel else 1
        ones = np.ones((16 // pieces, 2, 32), np.float32)
        branch = Layer.BRANCHES[0]
        masks = [layer.joined(branch, (ms.Tensor(ones), None), ms.Tensor(0 * ones)) for _ in range(2)]
        np.testing.assert_array_equal(masks[0].asnumpy(), masks[1].asnumpy())
        return masks[0].asnumpy()


def test_masks_differ_where_the_sequence_is_cut_and_agree_where_it_is_whole():
    """tp2: both ranks have one process's dropout mask; with sequence parallelism their own pieces of it. A second run
    of the layer repeats it."""
    (whole,) = run(1, layer_mask, "")
    for rank in run(2, layer_mask, "--tensor-model-parallel-size 2"):
        np.testing.assert_array_equal(rank, whole)
    pieces = run(2, layer_mask, "--tensor-model-parallel-size 2 --sequence-parallel")
    assert not np.array_equal(*pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


# A model with random numbers of its own, in training -----------------------------------------------------------------


def noisy_losses(backend, flags: str) -> tuple[list[float], list]:
    """(losses, keys of the first step) of a GPT whose author drops out the embedding with a stream of his own."""
    from mindspore import nn

    from pynative import kernels
    from pynative.tensor_parallel import get_rng_tracer
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.layouts import Rows

    config = config_of(f"{TINY} --global-batch-size 4 --train-iters 4 {flags}", backend.world_size)
    losses, keys = [], []

    class NoisyEmbedding(nn.Cell):
        def __init__(self, embedding: nn.Cell) -> None:
            super().__init__()
            self.embedding = embedding

        @property
        def word_embeddings(self):
            return self.embedding.word_embeddings

        def construct(self, *inputs):
            x = self.embedding(*inputs)
            stream = MODEL_PARALLEL_RNG if config.parallel_config.sequence_parallel else DATA_PARALLEL_RNG
            with get_rng_tracer().rng_fork(stream):
                keys.append(get_rng_tracer().next_key())
            return kernels.dropout(x, 0.3, keys[-1])

    class Recorder(Callback):
        def on_step_end(self, state):
            losses.append(state.result.loss)

    def model(pre_process=True, post_process=True):
        gpt = GPTModel(config.model_config, pre_process=pre_process, post_process=post_process)
        gpt.language_model.embedding = NoisyEmbedding(gpt.language_model.embedding)
        return gpt

    with job(backend, config):
        pretrain(lambda samples: (Rows(), None, None), model, all_config=config, callbacks=[Recorder()])
    return losses, keys


def test_a_users_stream_agrees_on_replicas_and_differs_on_shards():
    """tp2: losses with a user's stream for replicated activations are one process's; a stream for shards differs by
    rank."""
    ((alone, keys),) = run(1, noisy_losses, "")
    assert len(set(keys)) == len(keys) == 8
    for losses, rank_keys in run(2, noisy_losses, "--tensor-model-parallel-size 2"):
        assert rank_keys == keys
        np.testing.assert_allclose(losses, alone, rtol=1e-5)
    results = run(2, noisy_losses, "--tensor-model-parallel-size 2 --sequence-parallel")
    assert not set(results[0][1]) & set(results[1][1])


def test_a_users_stream_goes_on_where_a_checkpoint_left_it(tmp_path):
    """Two steps, saved, and two more are one run's four: a user's stream depends on the iteration only."""
    ((whole, _),) = run(1, noisy_losses, "")
    ((first, _),) = run(1, noisy_losses, f"--save {tmp_path} --exit-interval 2 --save-interval 2")
    ((rest, _),) = run(1, noisy_losses, f"--load {tmp_path}")
    assert len(first) == len(rest) == 2 and first + rest == whole
