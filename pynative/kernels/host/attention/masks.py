"""Masks of attention's tiles [.., keys, queries]: the diagonal, a given mask, chosen keys, dropout."""

from functools import lru_cache

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import Scores

MASKED_SCORE = np.float32(-10000.0)
"""Megatron's value for masked scores. A row that is masked everywhere attends evenly, without NaN."""

_UNSIGNED = {2: np.uint16, 4: np.uint32}


def bits(array: Array) -> Array:
    """A view of the array's memory as unsigned numbers of its width, 2 or 4 bytes: numpy is slow with MindSpore's
    bfloat16, and fast with these."""
    return array.view(_UNSIGNED[array.itemsize])


def bits_of(kept: Array, item_bytes: int) -> Array:
    """Unsigned numbers of `item_bytes` bytes, 2 or 4: all bits set where bool `kept`, else 0."""
    return -np.ascontiguousarray(kept).astype(_UNSIGNED[item_bytes])


def keep(tile: Array, kept: Array, out: Array) -> None:
    """Fill out with tile where `kept`, made by `bits_of`, is set, else 0. All three have one item size; tile and out
    have one shape, to which that of kept broadcasts. out may be tile."""
    np.bitwise_and(bits(tile), kept, out=bits(out))


def ones_where(kept: Array, like: Array) -> Array:
    """An array of kept's shape and the type of `like`: 1 where `kept`, made by `bits_of`, is set, else 0."""
    return (kept & bits(np.ones(1, like.dtype))).view(like.dtype)


@lru_cache(maxsize=16)
def triangle(size: int, item_bytes: int) -> Array:
    """Unsigned numbers of `item_bytes` bytes for a square tile [keys, queries] at the diagonal: all bits set where the
    key is not after the query, else 0. Later calls may give the same array: not to be written."""
    return bits_of(np.tri(size, dtype=bool).T, item_bytes)


def columns(rows: Array, scores: Scores) -> Array:
    """From rows [..., S], with a column for each key of the sequence, the columns of the keys of the block `scores`, in
    its order."""
    parts = [rows[..., run.start : run.stop] for run in scores.key_positions]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def shown_to(chosen: Array, keys: range) -> Array:
    """Bool [queries, keys], True where the key's position (of the range `keys`) is among the positions [queries, k]
    `chosen` for the query; a negative one stands for none."""
    rows, columns = np.nonzero((chosen >= keys.start) & (chosen < keys.stop))
    shown = np.zeros((len(chosen), len(keys)), bool)
    shown[rows, chosen[rows, columns] - keys.start] = True
    return shown


def limits_of(hidden: Array) -> Array:
    """Upper limits, float32 [.., keys, queries], of scores: MASKED_SCORE where bool `hidden` [.., queries, keys], else
    infinity."""
    return np.where(np.ascontiguousarray(np.swapaxes(hidden, -1, -2)), MASKED_SCORE, np.float32(np.inf))
