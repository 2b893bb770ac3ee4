"""The layout of tensors that travel between ranks, on the host: parts, columns, heads and rows are taken, put into
another order, and summed.

s sequence, b batch, r rows, w columns of a part.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.threads import row_blocks, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert, sum_into, widened


def chunk(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    # Always a copy: the chunk outlives the whole tensor.
    return from_numpy(np.array(np.split(array_of(x), count, axis)[index], order="C"))


def take_columns(x: Tensor, ranges: Sequence[range]) -> Tensor:
    array = array_of(x)
    return from_numpy(np.concatenate([array[..., columns.start : columns.stop] for columns in ranges], axis=-1))


def place_columns(x: Tensor, ranges: Sequence[range], width: int) -> Tensor:
    array = array_of(x)
    wide = np.zeros((*array.shape[:-1], width), array.dtype)
    start = 0
    for columns in ranges:
        wide[..., columns.start : columns.stop] = array[..., start : start + len(columns)]
        start += len(columns)
    return from_numpy(wide)


def sequence_first(x: Tensor) -> Tensor:
    return from_numpy(np.ascontiguousarray(array_of(x).T))


def _repeated(x: Array, times: int) -> Array:
    return x if times == 1 else np.repeat(x, times, axis=2)


def pack_heads(xs: Sequence[Tensor], parts: int, times: Sequence[int]) -> Tensor:
    arrays = [_repeated(array_of(x), t) for x, t in zip(xs, times, strict=True)]
    cut = [x.reshape(*x.shape[:2], parts, -1).transpose(2, 0, 1, 3) for x in arrays]
    packed = np.concatenate(cut, axis=-1)
    return from_numpy(packed.reshape(-1, *packed.shape[2:]))


def unpack_heads(
    packed: Tensor, parts: int, shapes: Sequence[tuple[int, ...]], times: Sequence[int]
) -> tuple[Tensor, ...]:
    array = array_of(packed)
    by_part = array.reshape(parts, -1, *array.shape[1:])
    widths = [int(np.prod(shape)) * t // parts for shape, t in zip(shapes, times, strict=True)]
    chunks = np.split(by_part, np.cumsum(widths)[:-1], axis=-1)
    return tuple(_summed(chunk, shape, t) for chunk, shape, t in zip(chunks, shapes, times, strict=True))


def _summed(chunk: Array, shape: tuple[int, ...], times: int) -> Tensor:
    """[parts, s, b, w] as a tensor [s, b, *shape], every `times` neighbouring heads, which are copies, added up."""
    heads = chunk.transpose(1, 2, 0, 3).reshape(*chunk.shape[1:3], shape[0], times, *shape[1:])
    if times == 1:
        return from_numpy(np.ascontiguousarray(heads[:, :, :, 0]))
    total = np.empty((*heads.shape[:3], *shape[1:]), chunk.dtype)
    convert(widened(heads).sum(3), total)
    return from_numpy(total)


def _rows(x: Tensor, columns: int) -> Array:
    """The tensor's rows [r, columns]; one of zeros where it has none, because numpy's take needs one."""
    return array_of(x).reshape(-1, columns) if x.size else np.zeros((1, columns), array_of(x).dtype)


def _bits(rows: Array) -> Array:
    """The same memory as unsigned numbers: numpy moves types that it knows several times as fast as bfloat16."""
    return rows.view(np.uint16) if rows.itemsize == 2 else rows


def _take(bits: Array, wanted: Array, out: Array) -> None:
    """Fill out with the rows bits[wanted], zeros where wanted is -1."""
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
