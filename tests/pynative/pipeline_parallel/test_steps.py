"""Evaluation, micro-batches of any length, and checkpoints of another layout under every schedule."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from parallel_core.batch.rules import BatchRules
from pynative.training.forward_step import MegatronForwardStep
from tests.support import checkpoint_jobs as jobs
from tests.support.checkpoint_jobs import assert_same
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.layouts import Rows, check_layout, train
from tests.support.pipelines import BASE, pipeline
from tests.support.pretraining import evaluated

SCHEDULES = ["1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"]
LENGTHS = (16, 10, 12, 2, 16, 8, 4, 6)
SHALLOW = f"{BASE} --num-layers 4"
WAITING = "--no-overlap-p2p-communication"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation(schedule):
    """Validation losses, computed without dropout, and the training losses around them are one process's."""
    flags = f"{TINY} --num-layers 4 --global-batch-size 4 --hidden-dropout 0.3 --eval-interval 1 --eval-iters 2"
    flags += " --untie-embeddings-and-output-weights"
    (expected,) = run(1, evaluated, flags)
    results = run(2, evaluated, f"{flags} {pipeline(schedule, 2)}")
    assert results[0] == results[1]
    np.testing.assert_allclose(results[0], expected, rtol=1e-5)


@pytest.mark.parametrize("layout", ["--micro-batch-size 2", "--micro-batch-size 2 --pipeline-model-parallel-size 2"])
def test_evaluation_in_batches_of_another_size(layout):
    """--eval-global-batch-size: two batches of four samples have the mean loss of four batches of two."""
    flags = f"{TINY} {layout} --global-batch-size 8 --eval-interval 1"
    ranks = config_of(flags, 2).parallel_config.pipeline_model_parallel_size
    twice = run(ranks, evaluated, f"{flags} --eval-iters 2 --eval-global-batch-size 4")
    often = run(ranks, evaluated, f"{flags} --eval-iters 4 --eval-global-batch-size 2")
    other = run(ranks, evaluated, f"{flags} --eval-iters 2")
    np.testing.assert_allclose(twice[0], often[0], rtol=1e-6)
    assert twice[0] != other[0]


def micro_batches() -> list[dict[str, np.ndarray]]:
    """Eight micro-batches of two rows, each cut to a length of its own."""
    rows = Rows()
    pairs = [(rows[2 * i], rows[2 * i + 1], length) for i, length in enumerate(LENGTHS)]
    return [{n: np.stack([a[n][:length], b[n][:length]]) for n in a} for a, b, length in pairs]


def forward_step(data_iterator, model):
    """Megatron's form: (loss of the next micro-batch, function of it that returns (loss, {"lm loss": loss}))."""
    batch = {name: Tensor(value) for name, value in next(data_iterator).items()}
    return model(**batch), lambda loss: (loss, {"lm loss": loss})


def train_lengths(backend, flags: str) -> tuple:
    """Train on `micro_batches` by `forward_step`."""
    return train(backend, flags, train_data_loader=micro_batches(), forward_step_func=forward_step)


@pytest.mark.parametrize(
    ("schedule", "more"),
    [*((schedule, "") for schedule in SCHEDULES), *((name, WAITING) for name in ("1f1b", "interleaved", "zb-v"))],
)
def test_micro_batches_of_different_lengths(schedule, more):
    """--variable-seq-lengths: stages send the shape of every tensor, as lengths differ between micro-batches and steps;
    one process's results."""
    layout = pipeline(schedule, 2, more)
    flags = f"{SHALLOW} --variable-seq-lengths --hidden-dropout 0.1 --untie-embeddings-and-output-weights"
    check_layout(flags, 2, layout, how=train_lengths)


def test_micro_batches_of_different_lengths_in_pieces():
    """--variable-seq-lengths on pp2 with tp2 and sequence parallelism, which cuts each stage's activations over two
    ranks."""
    more = "--tensor-model-parallel-size 2 --sequence-parallel"
    flags = f"{SHALLOW} --variable-seq-lengths --hidden-dropout 0.1"
    check_layout(flags, 4, pipeline("zb-h1", 2, more), how=train_lengths)


def test_without_the_flag_another_length_is_an_error():
    """Without --variable-seq-lengths a micro-batch of another length is refused with both shapes."""
    with pytest.raises(
        ValueError, match=r"rank 0, step 1: tokens has shape \[2, 10\], must have \[2, 16\]: --seq-length"
    ):
        run(2, train_lengths, f"{BASE} {pipeline('1f1b', 2)}")


@pytest.mark.parametrize("form", ["one iterator", "an iterator a chunk"])
def test_every_chunk_sees_the_same_micro_batches(form):
    """Virtual chunks get the same micro-batches in the same order over two steps, whichever runs ahead, from one
    iterator or one each."""
    data = iter(range(6)) if form == "one iterator" else [iter(range(6)), iter(range(6))]
    step = MegatronForwardStep(lambda data_iterator, model: (next(data_iterator), None), 3)
    seen: dict[int, list[int]] = {0: [], 1: []}
    for order in ((0, 0, 1, 0, 1, 1), (1, 1, 1, 0, 0, 0)):
        chunks = [nn.Cell(), nn.Cell()]
        step.begin(data, chunks, 3, BatchRules.of(config_of(TINY, 1)))
        for chunk in order:
            seen[chunk].append(step(chunks[chunk], 0, chunk)[0])
    assert seen == {0: [0, 1, 2, 3, 4, 5], 1: [0, 1, 2, 3, 4, 5]}


def train_from_dataset(backend, flags: str) -> tuple:
    """Train by `forward_step` on the dataset that the provider gives."""
    return train(backend, flags, forward_step_func=forward_step)


def test_megatrons_form_draws_micro_batches_of_a_dataset():
    """The iterator of Megatron's form yields micro-batches, not whole steps, which stages would send as one tensor."""
    check_layout(SHALLOW, 2, pipeline("interleaved", 2), how=train_from_dataset)


def test_megatrons_form_goes_on_where_it_stopped(tmp_path):
    """A run resumed with Megatron's forward step skips as many micro-batches as were drawn before, not as
    many steps."""
    flags = f"{TINY} --global-batch-size 8 --lr-decay-iters 4"
    flags += " --variable-seq-lengths"
    (whole,) = run(1, train_lengths, f"{flags} --train-iters 4")
    run(1, train_lengths, f"{flags} --train-iters 1 --save {tmp_path} --save-interval 100")
    (resumed,) = run(1, train_lengths, f"{flags} --train-iters 4 --load {tmp_path}")
    assert resumed[0] == whole[0][1:]


@pytest.mark.parametrize(
    ("before", "after"), [("interleaved", None), (None, "interleaved"), ("zb-h1", "interleaved"), ("zb-v", None)]
)
def test_a_checkpoint_fits_every_schedule(tmp_path, before, after):
    """Weights and moments loaded under another schedule are the saving run's to the bit."""

    def at(schedule: str | None, flags: str, steps: bool) -> jobs.Outcome:
        layout = pipeline(schedule, 2) if schedule else ""
        return run(
            2 if schedule else 1,
            jobs.train,
            f"--num-layers 4 --untie-embeddings-and-output-weights {layout} {flags}",
            steps,
        )[0]

    saved = at(before, f"--save {tmp_path}", steps=True)
    assert_same(at(after, f"--load {tmp_path}", steps=False), saved)
