"""4-bit formats (MXFP4, NF4): against their definitions, and against values of bitsandbytes."""

import numpy as np

from parallel_core.numerics.block_formats import NORMAL_QUANTILES, mxfp4, nf4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def test_mxfp4_is_the_nearest_number_of_its_block():
    """MXFP4 rounds each number of a block of 32 (or fewer at the end) to the nearest of E2M1's 16 times the block's
    power of two, halves away from zero; the power is that of the largest magnitude over 4."""
    generator = np.random.default_rng(3)
    for length in (31, 33, 64):
        values = (generator.normal(size=(3, length)) * np.exp(generator.normal(size=(3, 1)) * 8)).astype(np.float32)
        found = mxfp4(values)
        for row, rounded in zip(values, found, strict=True):
            for start in range(0, length, 32):
                block = row[start : start + 32].astype(np.float64)
                scale = 2.0 ** (np.floor(np.log2(np.abs(block).max())) - 2)
                distance = np.abs(np.abs(block)[:, None] / scale - E2M1[::-1])
                nearest = np.sign(block) * E2M1[::-1][distance.argmin(axis=1)] * scale
                np.testing.assert_array_equal(rounded[start : start + 32], nearest)


def test_blocks_lie_along_an_axis_and_rounding_twice_is_rounding_once():
    """MXFP4's blocks lie along `axis`; rounding a rounded array changes nothing; zeros stay zeros in both formats."""
    values = np.random.default_rng(4).normal(size=(96, 5)).astype(np.float32)
    np.testing.assert_array_equal(mxfp4(values, axis=0), mxfp4(np.ascontiguousarray(values.T)).T)
    np.testing.assert_array_equal(mxfp4(mxfp4(values)), mxfp4(values))
    assert not mxfp4(np.zeros((2, 40))).any() and not nf4(np.zeros((2, 40))).any()


def test_mxfp4_halves_go_away_from_zero():
    """MXFP4 by hand, in a block whose scale is 1: halves go away from zero, and 7 is cut to 6."""
    values = np.array([6, 0.25, -0.75, 2.5, -5, 0.24, 7], np.float32)
    assert mxfp4(values).tolist() == [6, 0.5, -1, 3, -6, 0, 6]


def test_nf4_is_a_quantile_times_a_scale_of_8_bits():
    """NF4 rounds each number of a block of 64 to the nearest of 16 quantiles times the block's scale, which is the
    largest magnitude to 8 bits (within 1%)."""
    values = np.random.default_rng(5).normal(size=(7, 100)).astype(np.float32)
    found, flat = nf4(values).reshape(-1), values.reshape(-1)
    for start in range(0, flat.size, 64):
        block, rounded = flat[start : start + 64], found[start : start + 64]
        scale = rounded[np.abs(block).argmax()] / np.sign(block[np.abs(block).argmax()])
        assert abs(scale - np.abs(block).max()) < 0.01 * np.abs(block).max()
        nearest = NORMAL_QUANTILES[np.abs(block[:, None] / np.abs(block).max() - NORMAL_QUANTILES).argmin(axis=1)]
        np.testing.assert_allclose(rounded, nearest * scale, rtol=1e-6)


def test_nf4_is_that_of_bitsandbytes():
    """NF4 with double quantisation equals bitsandbytes 0.50.2 on a CPU: eight recorded values, and the sum of all
    magnitudes."""
    found = nf4(np.random.default_rng(12).normal(size=(7, 100)).astype(np.float32))
    recorded = [-0.5485676, -1.5588717, -0.2703154, 1.6703347, 1.3084086, 0.0, -0.8444685, 0.0]
    np.testing.assert_allclose(found[3, 40:48], recorded, rtol=1e-6)
    np.testing.assert_allclose(np.abs(found).sum(dtype=np.float64), 546.4781602, rtol=1e-6)
