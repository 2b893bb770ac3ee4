"""8-bit formats E4M3 and E5M2: rounding of every code and every float16, and the scales of each recipe."""

import numpy as np
import pytest

from parallel_core.numerics.float8 import E4M3, E5M2, exact_scale, lower_power, quantised, rounded, shared_exponent
from parallel_core.numerics.float8_recipes import GRADIENT, INPUT, WEIGHT, DelayedScale, Recipe

BITS = {E4M3: (4, 3, 7), E5M2: (5, 2, 15)}
"""Format -> (bits of the exponent, bits of the mantissa, bias of the exponent)."""


def finite_values(form):
    """All finite numbers of the format from 0 on, by ascending code."""
    exponents, mantissas, bias = BITS[form]
    codes = np.arange(2 ** (exponents + mantissas) - (1 if form is E4M3 else 4))
    exponent, mantissa = codes >> mantissas, codes % 2**mantissas
    fraction = mantissa / 2**mantissas
    return np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))


def nearest(x, form):
    """The format's number nearest to each x, found by search; of two as near the one with the even code."""
    table, size = finite_values(form), np.abs(x).astype(np.float64)
    above = np.minimum(np.searchsorted(table, size), len(table) - 1)
    below = np.maximum(above - 1, 0)
    up, down = np.abs(table[above] - size), np.abs(size - table[below])
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    return np.copysign(table[code], x).astype(np.float32)


@pytest.mark.parametrize("form", [E4M3, E5M2])
def test_every_code_stays_what_it_is(form):
    """Each number of the format is rounded to itself, also negative; there are 127 of E4M3 and 124 of E5M2."""
    table = finite_values(form).astype(np.float32)
    assert len(table) == {E4M3: 127, E5M2: 124}[form] and table[-1] == form.largest
    assert np.array_equal(rounded(table, form), table) and np.array_equal(rounded(-table, form), -table)


@pytest.mark.parametrize("form", [E4M3, E5M2])
def test_every_float16_rounds_to_the_nearest_even_value(form):
    """Each float16, and each middle between two numbers of the format, is rounded to the nearest, halves to even;
    beyond the largest to the largest; NaN stays."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    found = rounded(x, form)
    assert np.array_equal(np.isnan(found), np.isnan(x))
    numbers = ~np.isnan(x)
    assert np.array_equal(found[numbers], nearest(np.clip(x[numbers], -form.largest, form.largest), form))
    middles = ((finite_values(form)[1:] + finite_values(form)[:-1]) / 2).astype(np.float32)
    assert np.array_equal(rounded(middles, form), nearest(middles, form))


def test_scales_are_those_of_the_largest_magnitude():
    """Scales by the largest magnitude of a tensor or block: exact, and lowered to a power of two, both 1 for magnitudes
    of 0, infinity and NaN; and MXFP8's shared exponent, 2^127 for 0."""
    amax = np.array([0, 1, 448, 3, 1e-44, np.inf, np.nan], np.float32)
    largest = np.finfo(np.float32).max
    third = np.float32(448) / np.float32(3)
    assert exact_scale(amax, E4M3).tolist() == [1, 448, 1, third, largest, 1, 1]
    assert lower_power(amax, E4M3).tolist() == [1, 256, 1, 128, 2.0**127, 1, 1]
    # 448 is 2^8 x 1.75: 1 / 448 lies between 2^-9 and 2^-8, 449 / 448 above 1.
    exponents = np.array([1, 448, 449, 57344, 0], np.float32)
    assert shared_exponent(exponents, E4M3).tolist() == [256, 1, 0.5, 2.0**-7, 2.0**127]
    assert shared_exponent(np.float32(57344), E5M2) == 1


def test_no_value_of_a_block_is_beyond_the_largest_and_each_block_has_its_own_scale():
    """MXFP8 quantises blocks of 32 along the summed axis, each with its own shared exponent; the blockwise recipe has
    128 x 128 blocks for weights along either axis."""
    x = np.random.default_rng(0).standard_normal((70, 90)).astype(np.float32)
    x[:, :32] *= 1e-6
    for operand, summed, block in ((INPUT, 1, (1, 32)), (GRADIENT, 0, (32, 1)), (WEIGHT, 0, (32, 1))):
        rounding = Recipe("mxfp8", "hybrid").rounding(operand, summed)
        assert rounding.block == block
        found = quantised(x, rounding)
        step = 2.0**-rounding.form.mantissa
        assert (np.abs(found - x) <= 0.5 * step * np.abs(x) + 1e-4 * np.abs(x[:, 32:]).max() * (block[0] > 1)).all()
        for row, column in ((0, 0), (33, 40), (64, 89)):
            rows = slice(row - row % block[0], row - row % block[0] + block[0])
            columns = slice(column - column % block[1], column - column % block[1] + block[1])
            part = x[rows, columns]
            scale = shared_exponent(np.abs(part).max(), rounding.form)
            assert np.array_equal(found[rows, columns], rounded(part * scale, rounding.form) / scale)
    square = Recipe("blockwise", "e4m3").rounding(WEIGHT, 1)
    assert square.block == (128, 128) and square == Recipe("blockwise", "e4m3").rounding(WEIGHT, 0)


def test_a_delayed_scale_follows_the_steps_that_it_remembers():
    """A delayed scale follows the newest or the largest of the magnitudes that it remembers; 0, infinity and NaN leave
    it as it is."""
    latest, largest = (DelayedScale(448 / 2, 2, algorithm) for algorithm in ("most_recent", "max"))
    found = []
    for amax in (4.0, 2.0, 0.0, 1.0, np.inf, np.nan, 8.0):
        for scale in (latest, largest):
            scale.advance(amax)
        found.append((latest.scale, largest.scale))
    assert found == [(56, 56), (112, 56), (112, 56), (224, 112), (224, 112), (224, 112), (28, 28)]
    assert DelayedScale(448, 1, "max").scale == 1
