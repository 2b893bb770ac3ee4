"""Heads out of Megatron's fused q/k/v rows, and rotary position embedding (Su et al. 2021), on the host."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.fused_rows import heads_of_group
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import as_float32
from pynative.kernels.host.threads import row_blocks, run, spans
from pynative.memory.arrays import array_of
from pynative.memory.rounding import fill, float32_for, widened
from pynative.tape.autograd import Moved

BLOCK_BYTES = 256 * 1024
"""Bytes of elements, counted as float32, that are rotated at a time: there are several passes, for which the second
level of the cache has room."""


def _group_parts(qkv: Array, layout: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """Views of qkv [..., g*(m+2)*d] as q [r, g, m], k [r, g, 1], v [r, g, 1], each entry a whole head; layout: (g, m
    query heads a group, d)."""
    groups, heads_per_group, head_size = layout
    q, k, v = heads_of_group(heads_per_group)
    grouped = _whole_heads(qkv, head_size).reshape(-1, groups, q + k + v)
    return grouped[:, :, :q], grouped[:, :, q : q + k], grouped[:, :, q + k :]


def _whole_heads(array: Array, head_size: int) -> Array:
    """A view whose entries are whole heads of `head_size` elements: numpy copies such an entry at once, three times as
    fast as element by element."""
    return array.reshape(-1).view(f"V{head_size * array.itemsize}")


def _split(qkv: Tensor, layout: tuple[int, int, int]) -> tuple[Tensor, ...]:
    array, head_size = array_of(qkv), layout[2]
    parts = _group_parts(array, layout)
    heads = [np.empty((*qkv.shape[:-1], part[0].size, head_size), array.dtype) for part in parts]
    _copy(parts, [_whole_heads(x, head_size).reshape(part.shape) for x, part in zip(heads, parts, strict=True)])
    return tuple(map(from_numpy, heads))


def _merged(*gradients: Tensor, layout: tuple[int, int, int], shape: tuple[int, ...]) -> Tensor:
    heads, head_size = [array_of(gradient) for gradient in gradients], layout[2]
    merged = np.empty(shape, heads[0].dtype)
    parts = _group_parts(merged, layout)
    _copy([_whole_heads(x, head_size).reshape(part.shape) for x, part in zip(heads, parts, strict=True)], parts)
    return from_numpy(merged)


def _copy(sources: Sequence[Array], outs: Sequence[Array]) -> None:
    """Copy each source [r, ...] into its out, in blocks of rows over the threads."""

    def block(start: int, stop: int) -> None:
        for source, out in zip(sources, outs, strict=True):
            np.copyto(out[start:stop], source[start:stop], casting="no")  # refuses another type instead of converting

    run(block, row_blocks(len(sources[0]), sum(source[0].nbytes for source in sources)))


def split_qkv(qkv: Tensor, groups: int, heads_per_group: int, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    layout = groups, heads_per_group, head_size
    return Moved.apply(qkv, partial(_split, layout=layout), partial(_merged, layout=layout, shape=qkv.shape))


class Setting(NamedTuple):
    """The setting of a rotation: whether a plane is two neighbouring elements or, if not `interleaved`, one of each
    half of the elements that rotate; and the first element of a head that rotates."""

    interleaved: bool
    start: int


def _pair(rotated: int, interleaved: bool) -> tuple[slice, slice]:
    """Slices of the `rotated` elements of a head that are the first and the second coordinates of the rotated
    planes."""
    if interleaved:
        return slice(0, rotated, 2), slice(1, rotated, 2)
    return slice(0, rotated // 2), slice(rotated // 2, rotated)


def _factors(cos: Array, sin: Array, head_size: int, planes: tuple[slice, slice], inverse: bool) -> tuple[Array, Array]:
    """(factors of an element, factors of its partner in the plane), each [..., d]; elements that do not rotate have 1
    and 0.

    y1 = x1 cos1 - x2 sin1, y2 = x2 cos2 + x1 sin2; inverse: the transpose of that, which is the gradient.
    """
    one, two = planes
    own, other = np.ones((*cos.shape[:-1], head_size), np.float32), np.zeros((*cos.shape[:-1], head_size), np.float32)
    own[..., : cos.shape[-1]] = cos
    other[..., one] = sin[..., two] if inverse else -sin[..., one]
    other[..., two] = -sin[..., one] if inverse else sin[..., two]
    return own, other


def _rotate(x: Array, angles: tuple[Array, Array], setting: Setting, inverse: bool) -> Array:
    """A new array of x [s, b, n, d] rotated: the elements from the start on times their factors, plus their partners in
    the planes times theirs; angles: (cos, sin)."""
    cos, sin = angles
    length, rotated, first = len(x), cos.shape[-1], setting.start
    one, two = _pair(rotated, setting.interleaved)
    shape = (length, -1, 1, rotated)  # broadcasts over heads, and over the batch where the angles have no batch
    own, other = _factors(cos.reshape(shape), sin.reshape(shape), x.shape[-1] - first, (one, two), inverse)
    y = np.empty(x.shape, x.dtype)

    def block(start: int, stop: int) -> None:
        rows = slice(start, stop)
        y[rows, ..., :first] = x[rows, ..., :first]
        part, out = widened(x[rows, ..., first:]), y[rows, ..., first:]
        result = float32_for(out)
        exchanged = np.zeros(part.shape, np.float32)
        exchanged[..., one], exchanged[..., two] = part[..., two], part[..., one]
        exchanged *= other[rows]
        np.multiply(part, own[rows], out=result)
        result += exchanged
        fill(out, result)

    run(block, spans(length, max(1, BLOCK_BYTES // (4 * x[0].size))))
    return y


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0) -> Tensor:
    angles, setting = (as_float32(cos), as_float32(sin)), Setting(interleaved, start)
    return Moved.apply(
        x,
        lambda x: from_numpy(_rotate(array_of(x), angles, setting, inverse=False)),
        lambda dy: from_numpy(_rotate(array_of(dy), angles, setting, inverse=True)),
    )
