"""The order of a blend's parts against its definition, step by step (Megatron's own arrays: test_gpt_dataset.py)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.data.blended import blending_index, exhaustive_blending_index
from parallel_core.data.dataset_config import normalize

weights_of_parts = st.lists(st.floats(0.01, 1), min_size=1, max_size=5).map(normalize)


def laggard(weights, taken, step):
    """The part whose samples taken so far are furthest below its weight's share at this step; of equal ones the
    first."""
    errors = [weight * max(float(step), 1.0) - count for weight, count in zip(weights, taken, strict=True)]
    return errors.index(max(errors))


def sample_numbers(chosen):
    """The number, for each step, of samples taken before from the same part."""
    return [int(np.count_nonzero(chosen[:i] == part)) for i, part in enumerate(chosen)]


@given(weights=weights_of_parts, size=st.integers(0, 50))
def test_the_part_that_lags_most_is_next(weights, size):
    """`blending_index` takes, at each step, the part furthest below its share, and from it the next sample."""
    chosen, numbers = blending_index(weights, size)
    for step, part in enumerate(chosen):
        taken = [int(np.count_nonzero(chosen[:step] == other)) for other in range(len(weights))]
        assert part == laggard(weights, taken, step)
    assert numbers.tolist() == sample_numbers(chosen)


@given(sizes=st.lists(st.integers(0, 15), min_size=1, max_size=4))
def test_exhaustive_order_takes_every_sample_once_and_spent_parts_never(sizes):
    """`exhaustive_blending_index` takes each sample of each part once, by the same rule among parts that are not used
    up."""
    chosen, numbers = exhaustive_blending_index(sizes)
    assert np.bincount(chosen, minlength=len(sizes)).tolist() == sizes
    assert numbers.tolist() == sample_numbers(chosen)
    for step, part in enumerate(chosen):
        taken = [int(np.count_nonzero(chosen[:step] == other)) for other in range(len(sizes))]
        left = [other for other in range(len(sizes)) if taken[other] < sizes[other]]
        total = sum(sizes)
        assert part == left[laggard([sizes[o] / total for o in left], [taken[o] for o in left], step)]


@pytest.mark.parametrize("size", [16384, 16385, 40000])
def test_steps_are_counted_on_from_one_chunk_to_the_next(size):
    """An order longer than a chunk of 16384 steps keeps the weights, and begins as a shorter one."""
    chosen, _ = blending_index([0.3, 0.7], size)
    assert np.bincount(chosen).tolist() == pytest.approx([0.3 * size, 0.7 * size], abs=1)
    assert chosen[:1000].tolist() == blending_index([0.3, 0.7], 1000)[0].tolist()
