"""What keeps a query from a key: the diagonal, a mask that is given, dropout. Tiles are [.., keys, queries]."""

from functools import lru_cache

import numpy as np

from pynative.kernels.block import Scores

MASKED_SCORE = np.float32(-10000.0)
"""Megatron's value for masked scores. A row that is masked everywhere attends evenly, without NaN."""

_UNSIGNED = {2: np.uint16, 4: np.uint32}


def bits(array: np.ndarray) -> np.ndarray:
    """The array's memory as unsigned numbers: numpy is slow with MindSpore's bfloat16, and fast with these."""
    return array.view(_UNSIGNED[array.itemsize])


def bits_of(kept: np.ndarray, item_bytes: int) -> np.ndarray:
    """All ones where bool `kept`, else 0, each so many bytes wide."""
    return -np.ascontiguousarray(kept).astype(_UNSIGNED[item_bytes])


def keep(tile: np.ndarray, kept: np.ndarray, out: np.ndarray) -> None:
    """out = tile where the bits of `kept` are set, else 0."""
    np.bitwise_and(bits(tile), kept, out=bits(out))


def ones_where(kept: np.ndarray, like: np.ndarray) -> np.ndarray:
    """1 where the bits of `kept` are set, else 0, of the type of `like`."""
    return (kept & bits(np.ones(1, like.dtype))).view(like.dtype)


@lru_cache(maxsize=16)
def triangle(size: int, item_bytes: int) -> np.ndarray:
    """Bits [size, size] of a tile at the diagonal: set where the key is not after the query."""
    return bits_of(np.tri(size, dtype=bool).T, item_bytes)


def columns(rows: np.ndarray, scores: Scores) -> np.ndarray:
    """Of a mask's rows the columns of a block's keys."""
    parts = [rows[..., run.start : run.stop] for run in scores.key_positions]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def shown_to(chosen: np.ndarray, keys: range) -> np.ndarray:
    """Bool [queries, keys]: which keys the positions [queries, k] name; those that are negative name none."""
    rows, columns = np.nonzero((chosen >= keys.start) & (chosen < keys.stop))
    shown = np.zeros((len(chosen), len(keys)), bool)
    shown[rows, chosen[rows, columns] - keys.start] = True
    return shown


def limits_of(hidden: np.ndarray) -> np.ndarray:
    """Upper limits [.., keys, queries] of the scores of bool `hidden` [.., queries, keys]."""
    return np.where(np.ascontiguousarray(np.swapaxes(hidden, -1, -2)), MASKED_SCORE, np.float32(np.inf))
