"""A key/value cache on the host: rows are written in place, and a query attends to all slots in use at once."""

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import AttentionRule
from pynative.memory.arrays import array_of, writable
from pynative.memory.rounding import bits, convert, widened


def write_slots(cache: Tensor, rows: Tensor, slots: Array) -> Tensor:
    place, text = np.nonzero(slots >= 0)
    bits(writable(cache))[slots[place, text], text] = bits(array_of(rows))[place, text]
    return cache


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, ages: Array, rule: AttentionRule, sinks: Tensor | None = None
) -> Tensor:
    queries, bias = array_of(q), bias_of(ages, rule, q.shape[2])
    keys, values = (widened(array_of(x)[: len(ages)]) for x in (k, v))
    out = attend(widened(queries)[0], keys, values, bias, rule, None if sinks is None else widened(array_of(sinks)))
    result = np.empty((1, len(out), out[0].size), queries.dtype)
    convert(out.reshape(result.shape), result)
    return from_numpy(result)


def bias_of(ages: Array, rule: AttentionRule, heads: int) -> Array | None:
    """Terms added to the scores of one query of each text: the model's bias, and -inf for keys of negative age or
    before the window. ages: int32 [S, b], as in `cached_attention`; heads: n. Float32 [b, n, S] with a bias, else
    [b, 1, S]; None without a bias if no key gets -inf."""
    hidden, form = ages < 0, rule.form
    if form.window is not None:
        hidden |= ages > form.window
    if not form.has_bias and not hidden.any():
        return None
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0)).T[:, None]
    first = rule.head_offset
    return bias + form.bias(range(first, first + heads), -ages.T).swapaxes(0, 1) if form.has_bias else bias


def attend(
    queries: Array, keys: Array, values: Array, bias: Array | None, rule: AttentionRule, sinks: Array | None = None
) -> Array:
    """Attention's output, float32 [b, n, e], for one query of each text: queries [b, n, d], keys [S, b, g, d], values
    [S, b, g, e] of S slots in use, sinks [n] (one more score a head, without a value), all float32. bias: from
    `bias_of`; rule: its scale and soft cap."""
    batch, heads, size = queries.shape
    groups = keys.shape[2]
    grouped = (queries * np.float32(rule.scale)).reshape(batch, groups, heads // groups, size)
    scores = np.matmul(grouped, keys.transpose(1, 2, 3, 0)).reshape(batch, heads, -1)
    cap = rule.form.soft_cap
    if cap is not None:
        scores = np.float32(cap) * np.tanh(scores / np.float32(cap))
    if bias is not None:
        scores += bias
    highest = scores.max(-1, keepdims=True)
    if sinks is not None:
        highest = np.maximum(highest, sinks[:, None])
    scores -= highest
    np.exp(scores, out=scores)
    total = scores.sum(-1, keepdims=True)
    scores /= total if sinks is None else total + np.exp(sinks[:, None] - highest)
    weights = scores.reshape(batch, groups, heads // groups, -1)
    return np.matmul(weights, values.transpose(1, 2, 0, 3)).reshape(batch, heads, -1)
