"""Samplers: which sample goes to which data-parallel rank and micro-batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.data.sampler import (
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
    endless,
    random_permutation,
)


@given(m=st.integers(1, 4), d=st.integers(1, 4), k=st.integers(0, 5), start=st.integers(0, 3))
def test_micro_batch_k_of_rank_r_is_where_the_golden_readme_says(m, d, k, start):
    """Micro-batch k of rank r of d has samples start + k m d + r m to + m - 1, for micro-batches of m, as Megatron's
    sampler."""
    for r in range(d):
        sampler = MegatronPretrainingSampler(1000, start * m * d, m, r, d)
        expected = [start * m * d + k * m * d + r * m + j for j in range(m)]
        assert list(sampler)[k] == expected


def test_incomplete_micro_batch_is_dropped_or_cut():
    """The samples that do not fill a micro-batch on every rank are dropped, or with drop_last false dealt out as far as
    they go."""

    def last(rank, drop_last):
        return list(MegatronPretrainingSampler(11, 0, 2, rank, 2, drop_last=drop_last))[-1]

    assert [last(rank, True) for rank in (0, 1)] == [[4, 5], [6, 7]]
    assert [last(rank, False) for rank in (0, 1)] == [[8, 9], [10]]


def test_used_up_data_are_refused():
    """A start behind the last sample is an error."""
    with pytest.raises(ValueError, match="all 8 samples have been used"):
        MegatronPretrainingSampler(8, 8, 1, 0, 1)


def test_permutation_is_that_of_torch():
    # torch.manual_seed(0); torch.randperm(10)
    """`random_permutation` equals torch.randperm after torch.manual_seed."""
    assert random_permutation(10, seed=0).tolist() == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]


@given(total=st.integers(1, 60), m=st.integers(1, 3), d=st.integers(1, 4), data_sharding=st.booleans())
def test_random_epoch_uses_no_sample_twice_and_ranks_agree_on_its_length(total, m, d, data_sharding):
    """A random epoch gives all ranks equally many micro-batches of different samples, with and without data sharding;
    too few samples for one are an error."""
    if total < m * d:
        with pytest.raises(ValueError, match="fewer than one micro-batch on each rank"):
            MegatronPretrainingRandomSampler(total, 0, m, 0, d, data_sharding)
        return
    epochs = [list(MegatronPretrainingRandomSampler(total, 0, m, r, d, data_sharding)) for r in range(d)]
    assert {len(epoch) for epoch in epochs} == {total // (m * d)}
    samples = np.array(epochs).ravel()
    assert len(set(samples.tolist())) == len(samples) and samples.max() < total


@pytest.mark.parametrize("data_sharding", [True, False])
def test_random_order_goes_on_where_it_stopped(data_sharding):
    """A random sampler from `consumed` samples on continues the uninterrupted order; each epoch is shuffled
    differently."""

    def first(number, consumed):
        micro_batches = endless(MegatronPretrainingRandomSampler(21, consumed, 2, 1, 2, data_sharding))
        return [next(micro_batches) for _ in range(number)]

    whole = first(12, consumed=0)
    for done in range(12):
        assert first(12 - done, consumed=4 * done) == whole[done:]
    assert sorted(whole[:5]) != whole[:5] and whole[5:10] != whole[:5], "shuffled, and differently in each epoch"


def test_random_order_from_the_middle_of_a_micro_batch_is_refused():
    """Consumed samples that are no whole number of micro-batches of all ranks are an error."""
    with pytest.raises(ValueError, match="6 consumed samples are not a whole number"):
        MegatronPretrainingRandomSampler(21, 6, 2, 0, 2, True)
