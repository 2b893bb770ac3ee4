"""The layout of tensors that travel between ranks, of MindSpore operators."""

import math
from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.numerics.dtypes import Array
from pynative.kernels.ops.elementwise import cast, widened_on_cpu


def chunk(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    size = x.shape[axis] // count
    part = x.narrow(axis, index * size, size)
    # Always a copy, as the chunk outlives the whole tensor: `contiguous` returns a view that is contiguous as it is.
    return part.copy() if part.is_contiguous() else part.contiguous()


def take_columns(x: Tensor, ranges: Sequence[range]) -> Tensor:
    return ops.concat([x.narrow(-1, run.start, len(run)) for run in ranges], -1)


def place_columns(x: Tensor, ranges: Sequence[range], width: int) -> Tensor:
    parts, stop, taken = [], 0, 0
    for run in ranges:
        parts += [_zero_columns(x, run.start - stop), x.narrow(-1, taken, len(run))]
        stop, taken = run.stop, taken + len(run)
    parts.append(_zero_columns(x, width - stop))
    return ops.concat([part for part in parts if part.shape[-1]], -1)


def _zero_columns(x: Tensor, width: int) -> Tensor:
    return ops.zeros((*x.shape[:-1], width), x.dtype)


def sequence_first(x: Tensor) -> Tensor:
    return x.swapaxes(0, 1).contiguous()


def pack_heads(xs: Sequence[Tensor], parts: int, times: Sequence[int]) -> Tensor:
    repeated = [x if t == 1 else ops.cat([x.expand_dims(3)] * t, 3) for x, t in zip(xs, times, strict=True)]
    cut = [x.reshape(*x.shape[:2], parts, -1).transpose(2, 0, 1, 3) for x in repeated]
    packed = ops.cat(cut, -1)
    return packed.reshape(-1, *packed.shape[2:])


@widened_on_cpu("packed")
def unpack_heads(
    packed: Tensor, parts: int, shapes: Sequence[tuple[int, ...]], times: Sequence[int]
) -> tuple[Tensor, ...]:
    by_part = packed.reshape(parts, -1, *packed.shape[1:])
    results, first = [], 0
    for shape, repeats in zip(shapes, times, strict=True):
        width = math.prod(shape) * repeats // parts
        chunk = by_part[..., first : first + width].transpose(1, 2, 0, 3)
        heads = chunk.reshape(*chunk.shape[:2], shape[0], repeats, *shape[1:])
        results.append(heads.reshape(*chunk.shape[:2], *shape) if repeats == 1 else heads.sum(axis=3))
        first += width
    return tuple(results)


@widened_on_cpu("x")
def gather_rows(x: Tensor, sources: Array, row: tuple[int, ...]) -> Tensor:
    if not (x.size and sources.size):
        return ops.zeros((len(sources), *row), x.dtype)
    x = x.reshape(-1, *row)
    if sources.min() < 0:  # -1 selects the row of zeros that is appended
        x = ops.cat((x, ops.zeros((1, *row), x.dtype)))
        sources = np.where(sources < 0, x.shape[0] - 1, sources)
    return ops.gather(x, Tensor.from_numpy(np.ascontiguousarray(sources, np.int32)), 0)


@widened_on_cpu("x")
def sum_rows(x: Tensor, places: Array, shape: tuple[int, ...]) -> Tensor:
    count, addends = places.shape
    row = tuple(x.shape[1:])
    if addends == 1:
        return gather_rows(x, places[:, 0], row).reshape(shape)
    parts = gather_rows(x, places.T.reshape(-1), row).reshape(addends, count, *row)
    return cast(cast(parts, mindspore.float32).sum(axis=0), x.dtype).reshape(shape)
