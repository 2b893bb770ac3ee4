"""Dropout masks: reproducible, addressable by row, of the right rate."""

import numpy as np
import pytest

from pynative.kernels.dropout import Dropout, dropout_mask, quantized_rate


@pytest.mark.parametrize("columns", [1, 16, 37])
def test_any_rows_can_be_made_alone(columns):
    """Rows of a dropout mask that are made alone equal those of the whole mask."""
    whole = dropout_mask((1, 2), (4, 5, columns), 0.5).reshape(20, columns)
    for rows in (slice(0, 3), slice(7, 20), slice(19, 20)):
        np.testing.assert_array_equal(dropout_mask((1, 2), (4, 5, columns), 0.5, rows), whole[rows])


RUNS = [((0, 4),), ((2, 5),), ((0, 1), (7, 8)), ((6, 8), (1, 3)), ((0, 2), (2, 4))]
SHARDS = [tuple(range(*run) for run in runs) for runs in RUNS]


@pytest.mark.parametrize("positions", SHARDS)
def test_the_mask_of_a_shard_is_the_shard_of_the_mask(positions):
    """The mask made for some runs of positions, in any order and in blocks of rows, is those rows of the whole
    sequence's mask."""
    whole = dropout_mask((1, 2), (8, 3, 5), 0.5)
    expected = np.concatenate([whole[list(run)] for run in positions])
    dropout = Dropout(0.5, (1, 2), positions)
    np.testing.assert_array_equal(dropout.mask(expected.shape), expected)
    rows = expected.reshape(-1, 5)
    for start, stop in [(0, 1), (1, 5), (2, len(rows)), (4, 5)]:
        np.testing.assert_array_equal(dropout.rows(expected.shape, start, stop), rows[start:stop])


def test_positions_must_be_those_of_the_tensor():
    """A Dropout whose positions do not cover the tensor is a ValueError when the mask is made."""
    with pytest.raises(ValueError, match="do not cover"):
        Dropout(0.5, (1,), (range(3),)).mask((4, 2, 5))


def test_masks_of_different_keys_are_unrelated():
    """Masks of different keys, of one number or two, correlate by less than 0.03."""
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0), (2**40, 3)]
    masks = [dropout_mask(key, (400, 100), 0.5).ravel() for key in keys]
    correlations = np.corrcoef(masks) - np.eye(len(keys))
    assert np.abs(correlations).max() < 0.03


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate):
    """The share of dropped elements is the rate, and kept ones are scaled so that the mask's mean is 1."""
    mask = dropout_mask((3,), (1000, 200), rate)
    assert np.mean(mask == 0) == pytest.approx(rate, abs=0.005)
    assert np.unique(mask) == pytest.approx([0, 1 / (1 - quantized_rate(rate))])
    assert mask.mean() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_impossible_rates_are_refused(rate):
    """A dropout rate below 0, or of 1, is a ValueError that gives the range."""
    with pytest.raises(ValueError, match="at least 0 and less than 1"):
        dropout_mask((1,), (2, 2), rate)
