"""Tensors laid out as they travel between context-parallel ranks, on the host."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert, widened


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
    """[parts, s, b, w] -> [s, b, *shape], every `times` neighbouring heads added up."""
    heads = chunk.transpose(1, 2, 0, 3).reshape(*chunk.shape[1:3], shape[0], times, *shape[1:])
    if times == 1:
        return from_numpy(np.ascontiguousarray(heads[:, :, :, 0]))
    total = np.empty((*heads.shape[:3], *shape[1:]), chunk.dtype)
    convert(widened(heads).sum(3), total)
    return from_numpy(total)
