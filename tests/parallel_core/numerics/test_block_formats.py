"""4-bit formats, against their definitions written out and a record of bitsandbytes."""

import numpy as np

from parallel_core.numerics.block_formats import NORMAL_QUANTILES, mxfp4, nf4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def test_mxfp4_is_the_nearest_number_of_its_block():
    """Blocks of 31 and 33 numbers, so that one is cut short: each is the nearest of the 16, and of two as near the one
    further from zero; the power of two is that of the largest magnitude over 4."""
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
    """Zeros stay zeros."""
    values = np.random.default_rng(4).normal(size=(96, 5)).astype(np.float32)
    np.testing.assert_array_equal(mxfp4(values, axis=0), mxfp4(np.ascontiguousarray(values.T)).T)
    np.testing.assert_array_equal(mxfp4(mxfp4(values)), mxfp4(values))
    assert not mxfp4(np.zeros((2, 40))).any() and not nf4(np.zeros((2, 40))).any()


def test_mxfp4_halves_go_away_from_zero():
    """6 sets the scale to 1."""
    values = np.array([6, 0.25, -0.75, 2.5, -5, 0.24, 7], np.float32)
    assert mxfp4(values).tolist() == [6, 0.5, -1, 3, -6, 0, 6]


def test_nf4_is_a_quantile_times_a_scale_of_8_bits():
    """Each of a block over its scale is one of the 16 numbers, and the scale is within a hundredth of the largest
    magnitude: of 8 bits the nearest of 256 are no further."""
    values = np.random.default_rng(5).normal(size=(7, 100)).astype(np.float32)
    found, flat = nf4(values).reshape(-1), values.reshape(-1)
    for start in range(0, flat.size, 64):
        block, rounded = flat[start : start + 64], found[start : start + 64]
        scale = rounded[np.abs(block).argmax()] / np.sign(block[np.abs(block).argmax()])
        assert abs(scale - np.abs(block).max()) < 0.01 * np.abs(block).max()
        nearest = NORMAL_QUANTILES[np.abs(block[:, None] / np.abs(block).max() - NORMAL_QUANTILES).argmin(axis=1)]
        np.testing.assert_allclose(rounded, nearest * scale, rtol=1e-6)


def test_nf4_is_that_of_bitsandbytes():
    """Version 0.50.2 on a CPU, with double quantisation: eight of the values that it gave, and the sum of all."""
    found = nf4(np.random.default_rng(12).normal(size=(7, 100)).astype(np.float32))
    recorded = [-0.5485676, -1.5588717, -0.2703154, 1.6703347, 1.3084086, 0.0, -0.8444685, 0.0]
    np.testing.assert_allclose(found[3, 40:48], recorded, rtol=1e-6)
    np.testing.assert_allclose(np.abs(found).sum(dtype=np.float64), 546.4781602, rtol=1e-6)
