"""Conversions between float32 and 16-bit types: exact, rounded to nearest even, by oneDNN as by numpy."""

import numpy as np
import pytest

from pynative.dtypes import BFLOAT16
from pynative.memory import rounding
from pynative.memory.rounding import convert, put, sum_into, widened

FLOAT16 = np.dtype(np.float16)


@pytest.fixture(params=["onednn", "numpy", "missing"])
def library(request, monkeypatch) -> str:
    """Run the test with oneDNN as converter, for any number of entries, then with numpy, at last where oneDNN's library
    is missing (aarch64, macOS); its name."""
    monkeypatch.setattr(rounding, "FEW", 1 << 40 if request.param == "numpy" else 0)
    if request.param == "missing":
        monkeypatch.setattr(rounding, "library", lambda: None)
        monkeypatch.setattr(rounding, "layout_of", None)  # a layout asks the library, too
    return request.param


def every_pattern(dtype: np.dtype) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16 if array.itemsize == 2 else np.uint32)


def numbers(seed: int = 0, count: int = 5000) -> np.ndarray:
    """float32 values of all magnitudes, ties between two bfloat16 values and their neighbours, infinities and the ends
    of float16."""
    random = np.random.default_rng(seed)
    spread = random.standard_normal(count) * np.exp(random.uniform(-60, 60, count))
    ties = (0x3F80_0000 + (np.arange(64, dtype=np.uint32) << 15)).view(np.float32)  # halfway between two bfloat16
    beside = np.nextafter(ties, np.float32(2)), np.nextafter(ties, np.float32(0))
    ends = np.array([0.0, -0.0, np.inf, -np.inf, 3.4e38, -3.4e38, 65504, 65519.9, 65520], np.float32)
    return np.concatenate([spread.astype(np.float32), ties, *beside, ends])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_every_sixteen_bit_number_is_widened_exactly(dtype, library):
    """`widened` of every 16-bit pattern has numpy's float32 bits, but for bfloat16 subnormals; NaN stays NaN."""
    patterns = every_pattern(dtype)
    expected = patterns.astype(np.float32)
    wide = widened(patterns)
    numbers = ~np.isnan(expected) & ((np.abs(expected) >= 2.0**-126) | (expected == 0) | (dtype == FLOAT16))
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(bits(wide)[numbers], bits(expected)[numbers])
    np.testing.assert_array_equal(np.isnan(wide), np.isnan(expected))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_numbers_are_rounded_to_nearest_even(dtype, library):
    """`convert` rounds ties, their neighbours, overflows and drawn float32 numbers to the bits that numpy gives."""
    values = numbers()
    out = np.empty(values.shape, dtype)
    with np.errstate(over="ignore"):
        convert(values, out)
        expected = values.astype(dtype)
    np.testing.assert_array_equal(bits(out), bits(expected))


def test_not_a_number_stays_one(library):
    """NaN stays NaN in 16 bits, also one whose upper bits are infinity's, and one whose rounding would carry over."""
    values = np.array([0x7F80_0001, 0xFF80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FC0_0000], np.uint32).view(np.float32)
    out = np.empty(len(values), BFLOAT16)
    convert(values, out)
    assert np.isnan(widened(out)).all()


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_arrays_of_any_strides(dtype, library):
    """`convert` and `widened` of slices, of transposed and of larger arrays have the values of whole ones."""
    values = numbers(count=600).reshape(-1, 9)[:, 1:6]
    with np.errstate(over="ignore"):
        expected = values.astype(dtype)
        for out in (np.empty(values.shape, dtype), np.empty(values.T.shape, dtype).T, np.empty((99, 12), dtype)):
            target = out[: len(values), : values.shape[1]]
            convert(values, target)
            np.testing.assert_array_equal(bits(np.ascontiguousarray(target)), bits(expected))
            np.testing.assert_array_equal(widened(target), expected.astype(np.float32))


@pytest.mark.parametrize("count", [2, 3, 17])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_sums_are_rounded_once(dtype, count, library):
    """16-bit terms are added in order in float32 and rounded once: 256 + 1 + 1 is 258, not 256 as with rounding after
    each addition."""
    parts = [np.full(100, 256, np.float32).astype(dtype), *[np.ones(100, np.float32).astype(dtype)] * (count - 1)]
    expected = np.full(100, 256 + count - 1, np.float32).astype(dtype)
    sum_into(parts[0], parts)
    np.testing.assert_array_equal(bits(parts[0]), bits(expected))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_sums_of_arrays_with_gaps(dtype, library):
    """`sum_into` of two 16-bit arrays with every other column is their float32 sum, rounded once."""
    parts = [np.random.default_rng(seed).standard_normal((30, 8)).astype(dtype)[:, ::2] for seed in range(2)]
    out = np.empty((30, 4), dtype)
    sum_into(out, parts)
    expected = (parts[0].astype(np.float32) + parts[1].astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(bits(out), bits(expected))


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), FLOAT16, BFLOAT16], ids=str)
def test_put_writes_or_adds_and_rounds_once(dtype, library):
    """`put` writes float32 values into each type, or adds them in float32 and rounds the sum."""
    out, values = np.full(50, 256, np.float32).astype(dtype), np.full(50, 1.5, np.float32)
    put(values, out, accumulate=True)
    np.testing.assert_array_equal(widened(out), np.full(50, 257.5, np.float32).astype(dtype).astype(np.float32))
    put(values, out, accumulate=False)
    np.testing.assert_array_equal(widened(out), values)
