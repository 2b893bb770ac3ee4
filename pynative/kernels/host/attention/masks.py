"""Masks of attention: the diagonal, a mask that is given, dropout. Tiles are [.., keys, queries]."""

from functools import lru_cache

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import Scores

MASKED_SCORE = np.float32(-10000.0)
"""Megatron's value for masked scores. A row that is masked everywhere attends evenly, without NaN."""

_UNSIGNED = {2: np.uint16, 4: np.uint32}


def bits(array: Array) -> Array:
    """The array's memory as unsigned numbers: numpy is slow with MindSpore's bfloat16, and fast with these."""
    return array.view(_UNSIGNED[array.itemsize])


def bits_of(kept: Array, item_bytes: int) -> Array:
    """All ones where bool `kept`, else 0, each so many bytes wide."""
    return -np.ascontiguousarray(kept).astype(_UNSIGNED[item_bytes])


def keep(tile: Array, kept: Array, out: Array) -> None:
    """out = tile where the bits of `kept` are set, else 0."""
    np.bitwise_and(bits(tile), kept, out=bits(out))


def ones_where(kept: Array, like: Array) -> Array:
    """1 where the bits of `kept` are set, else 0, of the type of `like`."""
    return (kept & bits(np.ones(1, like.dtype))).view(like.dtype)


@lru_cache(maxsize=16)
def triangle(size: int, item_bytes: int) -> Array:
    """Bits [size, size] of a tile at the diagonal: set where the key is not after the query."""
    return bits_of(np.tri(size, dtype=bool).T, item_bytes)


def columns(rows: Array, scores: Scores) -> Array:
    """The columns of a block's keys in a mask's rows."""
    parts = [rows[..., run.start : run.stop] for run in scores.key_positions]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def shown_to(chosen: Array, keys: range) -> Array:
    """Bool [queries, keys]: which keys the positions [queries, k] name; those that are negative name none."""
    rows, columns = np.nonzero((chosen >= keys.start) & (chosen < keys.stop))
    shown = np.zeros((len(chosen), len(keys)), bool)
    shown[rows, chosen[rows, columns] - keys.start] = True
    return shown


def limits_of(hidden: Array) -> Array:
    """Upper limits [.., keys, queries] of the scores of bool `hidden` [.., queries, keys]."""
    return np.where(np.ascontiguousarray(np.swapaxes(hidden, -1, -2)), MASKED_SCORE, np.float32(np.inf))
