"""Sparse attention on the host: an indexer's scores, the keys that are chosen by them, and the loss that trains it.

An indexer's scores, and those of the target of its loss, are computed for a block of queries and a head at a time.

j heads of the indexer, c their size; q queries of a block, and the k keys that these may see.
"""

from collections.abc import Iterator

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.context import Ranges, Run, runs
from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import AttentionRule
from pynative.kernels.host.arrays import array_or_none
from pynative.kernels.host.attention import attention
from pynative.kernels.host.attention.masks import shown_to
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import run
from pynative.memory.arrays import array_of, writable
from pynative.memory.rounding import widened

QUERIES = 64
"""The most queries of a block."""

EPSILON = np.float32(1e-10)
"""Number that is added to probabilities before their logarithm, as in Megatron."""


def _blocks(queries: list[Run], batch: int) -> list[tuple[int, Run]]:
    """(entry of the batch, block of at most QUERIES queries) for all queries of all entries."""
    return [(entry, block) for run in queries for block in run.parts(QUERIES) for entry in range(batch)]


def _rows(block: Run, first: int = 0) -> slice:
    """The rows of the block's queries, as a slice, in arrays that begin with row `first` of the rank's shard."""
    return slice(block.rows.start - first, block.rows.stop - first)


def _hide(scores: Array, chosen: Array | None, entry: int, block: Run) -> None:
    """Set to -inf the scores [q, k] of the block's q queries with the first k keys, up to the last query's own, where
    the query did not choose the key, or if chosen is None where the key comes after it. entry: of the batch."""
    keys = block.positions.stop
    if chosen is None:
        hidden = np.arange(keys) > np.array(block.positions)[:, None]
    else:
        hidden = ~shown_to(chosen[entry, _rows(block)], range(keys))
    scores[hidden] = -np.inf


def _softmax(scores: Array) -> None:
    """Replace each row by its softmax."""
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)


class _Indexer:
    """The indexer's heads with some queries of one entry of the batch, and the keys that these may see."""

    def __init__(self, entry: int, block: Run, query: Array, key: Array, weights: Array) -> None:
        self.key, self.count = widened(key[: block.positions.stop, entry]), query.shape[2]
        self.query, self.weights = (widened(x[_rows(block), entry]) for x in (query, weights))
        self._products = np.empty((len(block.rows), block.positions.stop), np.float32)

    def products(self) -> Iterator[tuple[int, Array]]:
        """(head, relu(query . key) [q, k]) for each head; the array is overwritten by the next head's."""
        for head in range(self.count):
            ENGINE.matmul(self.query[:, head], self.key.T, self._products)
            yield head, np.maximum(self._products, 0, out=self._products)

    def scores(self) -> Array:
        """The indexer's scores [q, k] of each key for each query: the sum over heads of weight * relu(query . key)."""
        total = np.zeros_like(self._products)
        for head, products in self.products():
            products *= self.weights[:, head, None]
            total += products
        return total

    def gradients(self, dscores: Array, dquery: Array, dweights: Array, dkey: Array) -> None:
        """Fill dquery [q, j, c] and dweights [q, j], and add to dkey [k, c], from the gradient of `scores` [q, k]."""
        for head, products in self.products():
            dweights[:, head] = np.einsum("qk,qk->q", dscores, products)
            dproducts = np.where(products > 0, dscores, np.float32(0))
            dproducts *= self.weights[:, head, None]
            ENGINE.matmul(dproducts, self.key, dquery[:, head])
            ENGINE.matmul(dproducts.T, self.query[:, head], dkey, accumulate=True)


def choose_keys(query: Tensor, key: Tensor, weights: Tensor, topk: int, positions: Ranges) -> Tensor:
    arrays = tuple(map(array_of, (query, key, weights)))
    length, batch = query.shape[:2]
    chosen = np.full((batch, length, topk), -1, np.int32)

    def choose(entry: int, block: Run) -> None:
        scores = _Indexer(entry, block, *arrays).scores()
        _hide(scores, None, entry, block)
        kept = best(scores, topk)
        rows, keys = np.nonzero(kept)
        chosen[entry, block.rows.start + rows, (np.cumsum(kept, axis=1) - 1)[rows, keys]] = keys

    run(choose, _blocks(runs(positions, length), batch))
    return from_numpy(chosen)


def best(scores: Array, topk: int) -> Array:
    """Bool [q, k], True for the topk (at least 1) highest scores of each row, -inf aside; of equal ones the first.
    scores: finite or -inf."""
    if scores.shape[1] <= topk:
        return np.isfinite(scores)
    lowest = np.partition(scores, -topk, axis=1)[:, -topk, None]
    above, ties = scores > lowest, scores == lowest
    room = topk - above.sum(axis=1, keepdims=True)
    return (above | ties & (np.cumsum(ties, axis=1) <= room)) & np.isfinite(scores)


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, scale: float) -> Tensor:
    return attention(q, k, v, AttentionRule(scale=scale, chosen=chosen))


def attention_target(q: Tensor, k: Tensor, chosen: Tensor | None, queries: Run, scale: float) -> Tensor:
    q_array, k_array, kept = array_of(q), array_of(k), array_or_none(chosen)
    batch, heads = q.shape[1:3]
    target = np.zeros((batch, len(queries.rows), queries.positions.stop), np.float32)

    def add_heads(entry: int, block: Run) -> None:
        rows, count = _rows(block, queries.rows.start), block.positions.stop
        scores = np.empty((len(block.rows), count), np.float32)
        for head in range(heads):
            keys = widened(k_array[:count, entry, head])
            ENGINE.matmul(widened(q_array[_rows(block), entry, head]), keys.T, scores)
            scores *= np.float32(scale)
            _hide(scores, kept, entry, block)
            _softmax(scores)
            target[entry, rows, :count] += scores

    run(add_heads, _blocks([queries], batch))
    return from_numpy(target)


def indexer_gradient(
    query: Tensor, key: Tensor, weights: Tensor, chosen: Tensor | None, target: Tensor, queries: Run, factor: float,
    dkey: Tensor,
) -> tuple[float, Tensor, Tensor]:  # fmt: skip
    arrays, kept = tuple(map(array_of, (query, key, weights))), array_or_none(chosen)
    targets, tasks = array_of(target), _blocks([queries], query.shape[1])
    dquery, dweights = (np.empty((len(queries.rows), *x.shape[1:]), np.float32) for x in (query, weights))
    losses, key_gradients = np.zeros(len(tasks), np.float32), dict[int, Array]()

    def work(number: int, entry: int, block: Run) -> None:
        rows, count = _rows(block, queries.rows.start), block.positions.stop
        indexer = _Indexer(entry, block, *arrays)
        scores, wanted = indexer.scores(), targets[entry, rows, :count]
        _hide(scores, kept, entry, block)
        losses[number] = _divergence(scores, wanted)
        scores *= np.float32(factor)
        key_gradients[number] = np.zeros((count, key.shape[2]), np.float32)
        indexer.gradients(scores, dquery[rows, entry], dweights[rows, entry], key_gradients[number])

    run(work, [(number, *task) for number, task in enumerate(tasks)])
    sums = writable(dkey)
    for number, (entry, block) in enumerate(tasks):
        sums[: block.positions.stop, entry] += key_gradients[number]
    return float(losses.sum()), from_numpy(dquery), from_numpy(dweights)


def _divergence(scores: Array, target: Array) -> float:
    """KL(target || p), p = softmax(scores), summed over rows. The scores are overwritten by their gradient: with g =
    target / (p + EPSILON), p (sum(p g) - g)."""
    _softmax(scores)
    target = target / target.sum(axis=1, keepdims=True)
    shifted = scores + EPSILON
    loss = float((target * (np.log(target + EPSILON) - np.log(shifted))).sum())
    np.divide(target, shifted, out=shifted)
    shifted -= (scores * shifted).sum(axis=1, keepdims=True)
    scores *= -shifted
    return loss
