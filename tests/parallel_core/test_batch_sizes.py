"""Growing batch sizes (--rampup-batch-size, --step-batch-size-schedule) are Megatron's."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapping.flags.notations import batch_sizes
from parallel_core.batch_sizes import BatchSizes
from tests.support.engine import config_of

RECORDED = {
    (16, 4, 4, 100): [4] * 9 + [8] * 4 + [12] * 3 + [16] * 4,
    (12, 4, 4, 8): [4, 8, 12, 12],
    (64, 16, 8, 1000): [16] * 11 + [24] * 7 + [32] * 5 + [40] * 5 + [48] * 3 + [56] * 3 + [64] * 2,
}
"""(final size, *--rampup-batch-size) -> sizes of the steps by Megatron-Core 0.14's
RampupBatchsizeNumMicroBatchesCalculator."""


def sequence(sizes: BatchSizes, steps: int) -> list[int]:
    """The batch sizes of the first `steps` steps."""
    seen, found = 0, []
    for _ in range(steps):
        found.append(sizes.at(seen))
        seen += found[-1]
    return found


@pytest.mark.parametrize("case", RECORDED)
def test_a_ramp_is_megatrons(case):
    """The sizes of a ramp's steps equal the recorded ones."""
    final, *ramp = case
    assert sequence(BatchSizes(final, tuple(ramp)), len(RECORDED[case])) == RECORDED[case]


def test_a_schedule_counts_tokens():
    """--step-batch-size-schedule "0:8 1K:16 0.01M:32" changes the size after these numbers of tokens."""
    pairs = batch_sizes("0:8 1K:16 0.01M:32")
    assert pairs == [[0, 8], [1000, 16], [10_000, 32]]
    sizes = BatchSizes(32, None, tuple((tokens // 10, size) for tokens, size in pairs))
    assert sizes.is_sound and sizes.sizes() == [8, 16, 32]
    assert [sizes.at(seen) for seen in (0, 99, 100, 999, 1000, 10**6)] == [8, 8, 16, 16, 32, 32]


SIZES = {"global_batch_size": 8, "rampup_batch_size": None}


@pytest.mark.parametrize("pairs", [[[]], [[0, 8], []], [[0]], [[0, 8, 1]]])
def test_a_schedule_of_other_than_pairs_is_not_sound(pairs):
    """A schedule with an entry that is no pair, also an empty one, is no schedule."""
    assert not BatchSizes.of(SimpleNamespace(**SIZES, step_batch_size_schedule=pairs), 10).is_sound


def test_a_ramp_over_no_samples_has_no_sizes_but_the_final_one():
    """--rampup-batch-size 4 4 0 begins with the final size, and no other size is listed for the rules to refuse."""
    sizes = BatchSizes(16, (4, 4, 0))
    assert sizes.is_sound and sizes.sizes() == [sizes.at(0)] == [16] and sizes.steps(32) == 2


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 6), st.integers(0, 200), st.integers(0, 400))
def test_steps_are_counted(start, increment, increments, ramp_samples, samples):
    """`BatchSizes.steps(samples)` is the number of whole steps that fit into the samples, as counted one by one."""
    sizes = BatchSizes(start + increments * increment, (start, increment, ramp_samples))
    assert sizes.is_sound
    seen = steps = 0
    while seen + sizes.at(seen) <= samples:
        seen, steps = seen + sizes.at(seen), steps + 1
    assert sizes.steps(samples) == steps
    assert set(sequence(sizes, 50)) <= set(sizes.sizes())


def test_a_run_in_samples_counts_its_steps():
    """--train-samples with growing batches gives the run's number of whole iterations."""
    flags = "--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 10 --max-position-embeddings 10"
    flags += " --micro-batch-size 2 --train-samples 40 --lr 1e-3 --padded-vocab-size 8 --mock-data"
    ramp = config_of(f"{flags} --global-batch-size 12 --rampup-batch-size 4 4 8", 1)
    assert ramp.training_config.training_iters == 4  # 4 + 8 + 12 + 12 of 40
    steps = config_of([*flags.split(), "--step-batch-size-schedule", "0:4 120:8"], 1)
    assert (steps.dataset_config.global_batch_size, steps.training_config.training_iters) == (8, 6)


@pytest.mark.parametrize(
    ("drops", "places"), [(True, [0, 4, 0, 0, 0]), (False, [0, 4, 12, 0, 12])], ids=["drop", "keep"]
)
def test_a_step_begins_in_a_pass_over_the_data(drops, places):
    """Steps of 4, 8 and then 12 samples over 15: a pass that has too few left is over, or its last step is smaller."""
    sizes, found, seen = BatchSizes(12, (4, 4, 8)), [], 0
    for _ in places:
        found.append(sizes.place(seen, 15, drops))
        seen += sizes.at(seen)
    assert found == places
