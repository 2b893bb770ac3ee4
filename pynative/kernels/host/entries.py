"""Compressed attention's entries on the host: pooled windows of tokens, their choice by an indexer, and the indexer's
loss. Letters are those of `contract/entries.py`; q queries of a block."""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.sparse import EPSILON, best
from pynative.kernels.host.threads import run, spans
from pynative.memory.arrays import array_of
from pynative.memory.rounding import fill, widened
from pynative.tape.autograd import Function

QUERIES = 64
"""The most queries of a block."""


class _Windows:
    """The move between tokens [s, b, m d] and the windows of their entries, [c, m ratio, b, d]."""

    def __init__(self, shape: tuple[int, ...], size: int, ratio: int) -> None:
        self.shape, self.size, self.ratio = shape, size, ratio
        self.count, self.parts = shape[0] // ratio, shape[2] // size

    def of(self, x: Array, nothing: float) -> Array:
        """The windows [c, m ratio, b, d] of tokens x, float32, with m 1 maybe a view of x; `nothing` stands for the
        tokens before the first window."""
        cut = widened(x[: self.count * self.ratio]).reshape(self.count, self.ratio, self.shape[1], self.parts, -1)
        if self.parts == 1:
            return np.asarray(cut[..., 0, :])
        windows = np.full((self.count, 2 * self.ratio, self.shape[1], self.size), nothing, np.float32)
        windows[:, self.ratio :], windows[1:, : self.ratio] = cut[..., 1, :], cut[:-1, ..., 0, :]
        return windows

    def back(self, windows: Array) -> Array:
        """Gradients of windows [c, m ratio, b, d] as those of tokens, [c, ratio, b, m d]: the transpose of `of`."""
        if self.parts == 1:
            return windows
        cut = np.zeros((self.count, self.ratio, self.shape[1], 2, self.size), np.float32)
        cut[..., 1, :], cut[:-1, ..., 0, :] = windows[:, self.ratio :], windows[1:, : self.ratio]
        return cut.reshape(self.count, self.ratio, self.shape[1], -1)

    def filled(self, tokens: Array, dtype: np.dtype[Any]) -> Tensor:
        """Tokens [c, ratio, b, m d] as a tensor [s, b, m d] of this type, with zeros behind the last whole window."""
        out = np.zeros(self.shape, dtype)
        fill(out[: self.count * self.ratio], tokens.reshape(-1, *self.shape[1:]))
        return from_numpy(out)


class _PoolWindows(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, gates: Tensor, bias: Tensor, ratio: int, size: int) -> Tensor:
        ctx.windows, ctx.bias = _Windows(values.shape, size, ratio), bias
        ctx.save_for_backward(values, gates)
        shares = _shares(ctx.windows, gates, bias)
        shares *= ctx.windows.of(array_of(values), 0.0)
        out = np.empty((ctx.windows.count, values.shape[1], size), array_of(values).dtype)
        fill(out, shares.sum(axis=1))
        return from_numpy(out)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (values, gates), windows = ctx.saved_tensors, ctx.windows
        shares, inside, upstream = _shares(windows, gates, ctx.bias), windows.of(array_of(values), 0.0), as_float32(dy)
        inside = inside - (shares * inside).sum(axis=1, keepdims=True)  # it may be the saved values' memory
        dvalues = shares * upstream[:, None]
        inside *= dvalues
        dgates, dtype = windows.back(inside), array_of(values).dtype
        dbias = add_summed_gradient(ctx.bias, dgates.sum(axis=(0, 2)))
        return windows.filled(windows.back(dvalues), dtype), windows.filled(dgates, dtype), dbias, None, None


def _shares(windows: _Windows, gates: Tensor, bias: Tensor) -> Array:
    """The softmax over the tokens of each window of gates + bias, [c, m ratio, b, d]."""
    count = windows.count * windows.ratio
    shifted = widened(array_of(gates)[:count]).reshape(windows.count, windows.ratio, windows.shape[1], -1)
    shifted = shifted + as_float32(bias)[:, None]
    scores = windows.of(shifted.reshape(count, *windows.shape[1:]), -np.inf)
    scores = scores - scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores


def pool_windows(values: Tensor, gates: Tensor, bias: Tensor, ratio: int, size: int) -> Tensor:
    return _PoolWindows.apply(values, gates, bias, ratio, size)


class _Scores:
    """The indexer's scores of some queries of one entry of the batch with all pooled keys."""

    def __init__(self, entry: int, rows: slice, query: Array, key: Array, weights: Array) -> None:
        self.query, self.weights = widened(query[rows, entry]), widened(weights[rows, entry])
        self.key = widened(key[:, entry])
        stacked = self.query.transpose(1, 0, 2)
        self.products = np.empty((*stacked.shape[:2], len(self.key)), np.float32)
        ENGINE.matmul(stacked, np.ascontiguousarray(self.key.T)[None], self.products)
        np.maximum(self.products, 0, out=self.products)
        """relu(query . key) [j, q, c]."""

    def total(self) -> Array:
        """Scores [q, c]: the sum over heads of weight * relu(query . key)."""
        return np.asarray(np.einsum("jqc,qj->qc", self.products, self.weights))


def _blocks(length: int, batch: int) -> list[tuple[int, slice]]:
    return [(entry, slice(*span)) for span in spans(length, QUERIES) for entry in range(batch)]


def choose_entries(query: Tensor, key: Tensor, weights: Tensor, topk: int, seen: Array) -> Tensor:
    arrays = tuple(map(array_of, (query, key, weights)))
    (length, batch), entries = query.shape[:2], key.shape[0]
    hidden = np.ones((batch, 1, length, entries), bool)

    def choose(entry: int, rows: slice) -> None:
        scores = _Scores(entry, rows, *arrays).total()
        scores[np.arange(entries) >= seen[rows, entry % seen.shape[1], None]] = -np.inf
        hidden[entry, 0, rows] = ~best(scores[:, ::-1], topk)[:, ::-1]  # among equal scores the latest entry wins

    run(choose, _blocks(length, batch))
    return from_numpy(hidden)


def entries_target(q: Tensor, k: Tensor, hidden: Tensor, scale: float, maximum: Tensor, inverse_sum: Tensor) -> Tensor:
    queries, keys, masks = array_of(q), array_of(k), array_of(hidden)
    (length, batch, heads, _), highest, inverse = q.shape, array_of(maximum), array_of(inverse_sum)
    target = np.zeros((batch, length, k.shape[0]), np.float32)

    def add_heads(entry: int, rows: slice) -> None:
        own, scores = widened(keys[:, entry, 0]).T, np.empty(target[entry, rows].shape, np.float32)
        for head in range(heads):
            ENGINE.matmul(widened(queries[rows, entry, head]), own, scores)
            scores *= np.float32(scale)
            scores -= highest[entry, head, rows, None]
            scores[masks[entry % len(masks), 0, rows]] = -np.inf
            np.exp(scores, out=scores)
            scores *= inverse[entry, head, rows, None]
            target[entry, rows] += scores

    run(add_heads, _blocks(length, batch))
    return from_numpy(target)


def entries_gradient(
    query: Tensor, key: Tensor, weights: Tensor, hidden: Tensor, target: Tensor, factor: float
) -> tuple[float, Tensor, Tensor, Tensor]:
    arrays, masks, targets = tuple(map(array_of, (query, key, weights))), array_of(hidden), array_of(target)
    dquery, dkey, dweights = (np.zeros(x.shape, np.float32) for x in arrays)
    tasks = _blocks(*query.shape[:2])
    losses, of_keys = np.zeros(len(tasks), np.float32), np.zeros((len(tasks), *key.shape[::2]), np.float32)

    def work(number: int, entry: int, rows: slice) -> None:
        scores, shown = _Scores(entry, rows, *arrays), ~masks[entry % len(masks), 0, rows]
        losses[number], gradient = _divergence(scores.total(), shown, targets[entry, rows])
        gradient *= np.float32(factor)
        dweights[rows, entry] = np.einsum("qc,jqc->qj", gradient, scores.products)
        dproducts = np.where(scores.products > 0, gradient, np.float32(0)) * scores.weights.T[..., None]
        dquery[rows, entry] = np.einsum("jqc,ce->qje", dproducts, scores.key)
        of_keys[number] = np.einsum("jqc,qje->ce", dproducts, scores.query)

    run(work, [(number, *task) for number, task in enumerate(tasks)])
    for number, (entry, _) in enumerate(tasks):
        dkey[:, entry] += of_keys[number]
    return float(losses.sum()), *map(from_numpy, (dquery, dkey, dweights))


def _divergence(scores: Array, shown: Array, target: Array) -> tuple[float, Array]:
    """(KL(target || p) summed over rows, the gradient of scores), p the softmax of scores [q, c] that are `shown`,
    target divided by its sum; see `sparse`."""
    some = shown.any(axis=1, keepdims=True)
    chances = np.where(shown, scores, -np.inf)
    chances = np.exp(chances - np.where(some, chances.max(axis=1, keepdims=True), 0))
    chances /= np.where(some, chances.sum(axis=1, keepdims=True), 1)
    total = target.sum(axis=1, keepdims=True)
    target = target / np.where(total > 0, total, 1)
    shifted = chances + EPSILON
    loss = float((target * (np.log(target + EPSILON) - np.log(shifted))).sum())
    ratio = target / shifted
    return loss, chances * ((chances * ratio).sum(axis=1, keepdims=True) - ratio)
