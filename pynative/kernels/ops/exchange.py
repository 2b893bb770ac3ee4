"""Tensors laid out as they travel between context-parallel ranks, of MindSpore operators."""

import math
from collections.abc import Sequence

from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import widened_on_cpu


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
