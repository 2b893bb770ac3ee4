"""Dropout masks from a generator that can start anywhere (PCG64 DXSM, O'Neill 2014), the same for every implementation.

A row of a mask follows from key, rate, width and the row's number alone: a backward can make it again instead of
storing it, and any block of rows can be made by itself, by any thread and by any rank that has a shard of the sequence.
16 random bits decide about an element, so a rate is rounded to a multiple of 1/65536. An element takes 0.6 ns; with
Philox, which can start anywhere too, it took 1.4 ns.
"""

import math
from dataclasses import dataclass

import numpy as np

from parallel_core.context import Ranges
from parallel_core.numerics.dtypes import Array

Key = tuple[int, ...]
Rows = Ranges
"""Ranges of global sequence positions: those of a tensor's first axis."""

_LEVELS = 65536
_DECIDED_BY_A_WORD = 4  # elements, each by 16 bits of a 64-bit word


def quantized_rate(rate: float) -> float:
    """The rate that masks have exactly: `rate` rounded to a multiple of 1/65536, at most 65535/65536. Raises ValueError
    unless `rate` is at least 0 and less than 1."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate is {rate}: it must be at least 0 and less than 1")
    return min(round(rate * _LEVELS), _LEVELS - 1) / _LEVELS


def dropout_mask(key: Key, shape: tuple[int, ...], rate: float, rows: slice | None = None) -> Array:
    """Float32 mask of `shape`: 0 where dropped, else 1 / (1 - rate), so that x * mask keeps x's expectation; the rate
    is that of `quantized_rate`, which raises ValueError for one outside of [0, 1).

    rows: a slice without a step of the mask's rows, all leading axes counted as one; the result is then [rows, last
    axis].
    """
    first, stop, _ = (rows or slice(None)).indices(math.prod(shape[:-1]))
    mask = np.empty((stop - first, shape[-1]), np.float32)
    _fill(mask, key, first, quantized_rate(rate))
    return mask if rows is not None else mask.reshape(shape)


def _fill(mask: Array, key: Key, first: int, rate: float) -> None:
    """Fill `mask` [r, w] with the rows from number `first` on of the key's mask of width w."""
    count, columns = mask.shape
    words_per_row = -(-columns // _DECIDED_BY_A_WORD)
    seed = np.random.SeedSequence((len(key), *key))  # with the length, because SeedSequence ignores trailing zeros
    generator = np.random.PCG64DXSM(seed).advance(first * words_per_row)
    bits = generator.random_raw(count * words_per_row).view(np.uint16)
    kept = bits.reshape(count, -1)[:, :columns] >= np.uint16(rate * _LEVELS)
    np.multiply(kept, np.float32(1 / (1 - rate)), out=mask, dtype=np.float32)


@dataclass(frozen=True)
class Dropout:
    """The dropout of one tensor [s, ..., h]: its rate, its key, and the positions in the sequence of its first axis, in
    its order (None or no range: 0 to s - 1)."""

    rate: float
    key: Key
    positions: Rows | None = None
    """Positions of the first axis in the sequence, in its order; None or no range: 0 to s - 1."""

    def mask(self, shape: tuple[int, ...]) -> Array:
        """The mask of a tensor of this shape, float32: 0 where dropped, else 1 / (1 - rate), the rate rounded as by
        `quantized_rate`. Raises ValueError as `rows`."""
        return self.rows(shape, 0, math.prod(shape[:-1])).reshape(shape)

    def rows(self, shape: tuple[int, ...], start: int, stop: int) -> Array:
        """The rows start..stop-1, [stop - start, h], of the mask of a tensor of this shape, all leading axes counted as
        one. Raises ValueError for a rate outside of [0, 1), or if given `positions` are not as many as the first axis
        has."""
        mask = np.empty((stop - start, shape[-1]), np.float32)
        per_position = math.prod(shape[1:-1])
        rate, before = quantized_rate(self.rate), 0
        for run in self.positions or (range(shape[0]),):
            # The run begins at row `before` of the tensor and at row `run.start * per_position` of the whole mask.
            own = range(max(start, before), min(stop, before + len(run) * per_position))
            if own:
                _fill(
                    mask[own.start - start : own.stop - start],
                    self.key,
                    run.start * per_position + own.start - before,
                    rate,
                )
            before += len(run) * per_position
        if before != math.prod(shape[:-1]):
            raise ValueError(f"dropout: rows {self.positions} do not cover the first axis of shape {shape}")
        return mask


def attention_dropout_mask(
    key: Key, batch: int, head: int, shape: tuple[int, int], rate: float, rows: slice | None = None
) -> Array:
    """The mask of one head's probabilities, float32 [s, s'] of 0 and 1 / (1 - rate), or its `rows`: that of
    `dropout_mask` with the numbers `batch`, of the entry of the batch, and `head`, of the head among all ranks' heads,
    appended to the key. Raises ValueError for a rate outside of [0, 1)."""
    return dropout_mask((*key, batch, head), shape, rate, rows)
