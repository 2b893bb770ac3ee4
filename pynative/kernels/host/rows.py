"""Rows brought into another order, and sums of rows, on the host: a block of results at a time."""

from math import prod

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.threads import row_blocks, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import sum_into


def _rows(x: Tensor, columns: int) -> Array:
    """The tensor's rows; one of zeros where it has none, for numpy wants something to take from."""
    return array_of(x).reshape(-1, columns) if x.size else np.zeros((1, columns), array_of(x).dtype)


def _bits(rows: Array) -> Array:
    """The same memory: numpy moves numbers that it knows several times as fast as bfloat16."""
    return rows.view(np.uint16) if rows.itemsize == 2 else rows


def _take(bits: Array, wanted: Array, out: Array) -> None:
    """out = bits[wanted], zeros for rows -1."""
    np.take(bits, wanted, axis=0, out=out, mode="clip")
    if wanted.min(initial=0) < 0:
        out[wanted < 0] = 0


def gather_rows(x: Tensor, sources: Array, row: tuple[int, ...]) -> Tensor:
    rows = _rows(x, prod(row))
    bits, out = _bits(rows), np.empty((len(sources), rows.shape[1]), rows.dtype)
    moved = _bits(out)
    run(
        lambda start, stop: _take(bits, sources[start:stop], moved[start:stop]),
        row_blocks(len(out), out.shape[1] * out.itemsize),
    )
    return from_numpy(out.reshape(len(sources), *row))


def sum_rows(x: Tensor, places: Array, shape: tuple[int, ...]) -> Tensor:
    count, addends = places.shape
    rows = _rows(x, prod(x.shape[1:]))
    bits, out = _bits(rows), np.empty((count, rows.shape[1]), rows.dtype)
    moved = _bits(out)

    def block(start: int, stop: int) -> None:
        _take(bits, places[start:stop, 0], moved[start:stop])
        others = np.empty((addends - 1, stop - start, rows.shape[1]), rows.dtype)
        for j, other in enumerate(others, 1):
            _take(bits, places[start:stop, j], _bits(other))
        if addends > 1:
            sum_into(out[start:stop], [out[start:stop], *others])

    run(block, row_blocks(count, out.shape[1] * out.itemsize * addends))
    return from_numpy(out.reshape(shape))
