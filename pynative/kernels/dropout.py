"""Dropout masks from a counter-based generator (Philox, Salmon et al. 2011), the same for every implementation.

A mask is a function of (key, position): backward makes it again instead of storing it, and any block of rows can be
made alone, by any thread. 16 random bits decide about an element, so a rate is a multiple of 1/65536.
"""

import math

import numpy as np

Key = tuple[int, ...]

_LEVELS = 65536
_BITS_PER_COUNTER = 16  # elements that one step of the generator's counter (four 64-bit words) decides


def quantized_rate(rate: float) -> float:
    """The rate that masks have exactly: the multiple of 1/65536 nearest to `rate`."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate is {rate}: it must be at least 0 and less than 1")
    return min(round(rate * _LEVELS), _LEVELS - 1) / _LEVELS


def dropout_mask(key: Key, shape: tuple[int, ...], rate: float, rows: slice | None = None) -> np.ndarray:
    """Float32 mask of `shape`: 0 where dropped, else 1 / (1 - rate), so that x * mask keeps x's expectation.

    `rows` selects some of the mask's rows (all leading axes counted as one); the result is then [rows, last axis].
    """
    columns = shape[-1]
    first, stop, _ = (rows or slice(None)).indices(math.prod(shape[:-1]))
    rate = quantized_rate(rate)
    counters_per_row = -(-columns // _BITS_PER_COUNTER)
    seed = np.random.SeedSequence((len(key), *key))  # the length, because trailing zeros alone change nothing
    generator = np.random.Philox(key=seed.generate_state(2, np.uint64), counter=first * counters_per_row)
    bits = generator.random_raw((stop - first) * counters_per_row * 4).view(np.uint16)
    kept = bits.reshape(stop - first, -1)[:, :columns] >= np.uint16(rate * _LEVELS)
    mask = np.multiply(kept, np.float32(1 / (1 - rate)), dtype=np.float32)
    return mask if rows is not None else mask.reshape(shape)


def attention_dropout_mask(
    key: Key, batch: int, head: int, shape: tuple[int, int], rate: float, rows: slice | None = None
) -> np.ndarray:
    """The mask of one head's probabilities [s, s]; `head` counts over all ranks, so cutting heads changes nothing."""
    return dropout_mask((*key, batch, head), shape, rate, rows)
