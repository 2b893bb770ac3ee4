"""A key/value cache on the host: rows are written in place, and a query meets all that a text has in one product."""

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.attention.score_form import PLAIN, ScoreForm
from parallel_core.numerics.dtypes import Array
from pynative.memory.arrays import array_of
from pynative.memory.rounding import bits, convert, widened


def write_slots(cache: Tensor, rows: Tensor, slots: Array) -> Tensor:
    place, text = np.nonzero(slots >= 0)
    bits(array_of(cache))[slots[place, text], text] = bits(array_of(rows))[place, text]
    return cache


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, ages: Array, *, scale: float, head_offset: int = 0, form: ScoreForm = PLAIN
) -> Tensor:
    queries = array_of(q)
    keys, values = (widened(array_of(x)[: len(ages)]) for x in (k, v))
    out = attend(widened(queries)[0], keys, values, bias_of(ages, form, head_offset, q.shape[2]), scale, form.soft_cap)
    result = np.empty((1, len(out), out[0].size), queries.dtype)
    convert(out.reshape(result.shape), result)
    return from_numpy(result)


def bias_of(ages: Array, form: ScoreForm, head_offset: int, heads: int) -> Array | None:
    """Terms added to a query's scores: ALiBi's, and -inf for keys that it does not see. Float32 [b, 1, S], with ALiBi
    [b, n, S]; None where it is 0 everywhere."""
    hidden = ages < 0
    if form.window is not None:
        hidden |= ages > form.window
    if form.slopes is None and not hidden.any():
        return None
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0)).T[:, None]
    if form.slopes is None:
        return bias
    slopes = np.array(form.slopes[head_offset : head_offset + heads], np.float32)
    return bias - slopes[:, None] * ages.T[:, None].astype(np.float32)


def attend(
    queries: Array, keys: Array, values: Array, bias: np.ndarray | None, scale: float, cap: float | None
) -> Array:
    """queries [b, n, d], keys [S, b, g, d], values [S, b, g, e], float32, and `bias_of` -> [b, n, e]."""
    batch, heads, size = queries.shape
    groups = keys.shape[2]
    grouped = (queries * np.float32(scale)).reshape(batch, groups, heads // groups, size)
    scores = np.matmul(grouped, keys.transpose(1, 2, 3, 0)).reshape(batch, heads, -1)
    if cap is not None:
        scores = np.float32(cap) * np.tanh(scores / np.float32(cap))
    if bias is not None:
        scores += bias
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    weights = scores.reshape(batch, groups, heads // groups, -1)
    return np.matmul(weights, values.transpose(1, 2, 0, 3)).reshape(batch, heads, -1)
