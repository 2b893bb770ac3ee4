"""Sparse attention of MindSpore operators: an indexer's scores, the keys that are chosen by them, and its loss.

j heads of the indexer, c their size; q queries of a block, and the k keys that these may see.
"""

from functools import lru_cache

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy, ops

from parallel_core.context import Ranges, Run, runs
from pynative.kernels.block import AttentionRule
from pynative.kernels.ops.attention import shown_to
from pynative.kernels.ops.blocked_attention import QUERY_BLOCK, attention
from pynative.kernels.ops.elementwise import cast, widened_on_cpu

EPSILON = 1e-10
"""Number that is added to probabilities before their logarithm, as in Megatron."""

FLOAT32, INT32 = mindspore.float32, mindspore.int32
NOTHING = float("-inf")

_product_with_transposed = ops.BatchMatMul(transpose_b=True)
_transposed_product = ops.BatchMatMul(transpose_a=True)


@lru_cache(maxsize=8)
def _later(positions: range) -> Tensor:
    """Bool [1, q, k], True for keys that come after the query: for q queries at `positions`, and the first k keys, up
    to the last query's own."""
    return from_numpy((np.arange(positions.stop) > np.array(positions)[:, None])[None])


def _hidden(chosen: Tensor | None, queries: Run) -> Tensor:
    """Bool, broadcasting to [b, q, k], for the q queries of the run and the first k keys, up to the last query's own:
    True where the query did not choose the key, or if chosen is None where the key comes after it."""
    if chosen is None:
        return _later(queries.positions)
    return ops.logical_not(shown_to(chosen[:, _rows(queries)], queries.positions.stop))


def _rows(queries: Run) -> slice:
    return slice(queries.rows.start, queries.rows.stop)


def _by_sample(x: Tensor) -> Tensor:
    """x [s, b, ...] as float32 [b, s, ...]."""
    return cast(x, FLOAT32).swapaxes(0, 1)


class _Indexer:
    """The indexer's heads with some queries, and the keys that these may see, in float32."""

    def __init__(self, query: Tensor, key: Tensor, weights: Tensor, queries: Run) -> None:
        rows = _rows(queries)
        self.key = _by_sample(key[: queries.positions.stop])
        self.query, self.weights = _by_sample(query[rows]), _by_sample(weights[rows])
        batch, count, heads, _ = self.query.shape
        stacked = self.query.reshape(batch, count * heads, -1)
        products = _product_with_transposed(stacked, self.key).reshape(batch, count, heads, -1)
        self.products = ops.relu(products)
        """relu(query . key) of each head, [b, q, j, k]."""

    def scores(self) -> Tensor:
        """The indexer's scores [b, q, k] of each key for each query: the sum over heads of weight *
        relu(query . key)."""
        return (self.products * self.weights.expand_dims(-1)).sum(axis=2)

    def gradients(self, dscores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(dquery [q, b, j, c], dweights [q, b, j], dkey [k, b, c]) from the gradient of `scores` [b, q, k]."""
        batch, count, heads, keys = self.products.shape
        upstream = dscores.expand_dims(2)
        dweights = (upstream * self.products).sum(axis=-1)
        dproducts = upstream * self.weights.expand_dims(-1) * cast(self.products > 0, FLOAT32)
        dproducts = dproducts.reshape(batch, count * heads, keys)
        dquery = ops.bmm(dproducts, self.key).reshape(self.query.shape)
        dkey = _transposed_product(dproducts, self.query.reshape(batch, count * heads, -1))
        return dquery.swapaxes(0, 1), dweights.swapaxes(0, 1), dkey.swapaxes(0, 1)


def choose_keys(query: Tensor, key: Tensor, weights: Tensor, topk: int, positions: Ranges) -> Tensor:
    blocks = []
    for queries in runs(positions, QUERY_BLOCK):
        scores = _Indexer(query, key, weights, queries).scores()
        blocks.append(_best(ops.masked_fill(scores, _later(queries.positions), NOTHING), topk))
    return ops.cat(blocks, 1)


def _best(scores: Tensor, topk: int) -> Tensor:
    """Positions, int32 [b, q, topk], of each row's highest finite scores [b, q, k], ascending, -1 where there are
    fewer; of equal ones the first."""
    batch, queries, keys = scores.shape
    count = min(topk, keys)
    lowest = ops.topk(scores, count, -1)[0][..., -1:]
    above, ties = scores > lowest, scores == lowest
    room = count - cast(above, FLOAT32).sum(axis=-1, keepdims=True)
    among_first = ops.cumsum(cast(ties, FLOAT32), -1) <= room
    kept = ops.logical_and(ops.logical_or(above, ops.logical_and(ties, among_first)), scores > NOTHING)
    from_end = cast(kept, FLOAT32) * Tensor(np.arange(keys, 0, -1, dtype=np.float32))
    found = ops.topk(from_end, count, -1)[0]
    positions = cast(ops.where(found > 0, keys - found, ops.full_like(found, -1.0)), INT32)
    if count == topk:
        return positions
    return ops.cat((positions, ops.full((batch, queries, topk - count), -1, dtype=INT32)), -1)


@widened_on_cpu("q")
def sparse_attention(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, scale: float) -> Tensor:
    return attention(q, k, v, AttentionRule(scale=scale, chosen=chosen))


def attention_target(q: Tensor, k: Tensor, chosen: Tensor | None, queries: Run, scale: float) -> Tensor:
    q_heads = cast(q[_rows(queries)], FLOAT32).transpose(1, 2, 0, 3)
    k_heads = cast(k[: queries.positions.stop], FLOAT32).transpose(1, 2, 0, 3)
    scores = _product_with_transposed(q_heads * scale, k_heads)
    scores = ops.masked_fill(scores, _hidden(chosen, queries).expand_dims(1), NOTHING)
    return ops.softmax(scores, -1).sum(axis=1)


def indexer_gradient(
    query: Tensor, key: Tensor, weights: Tensor, chosen: Tensor | None, target: Tensor, queries: Run, factor: float,
    dkey: Tensor,
) -> tuple[float, Tensor, Tensor]:  # fmt: skip
    indexer = _Indexer(query, key, weights, queries)
    chances = ops.softmax(ops.masked_fill(indexer.scores(), _hidden(chosen, queries), NOTHING), -1)
    target = target / target.sum(axis=-1, keepdims=True)
    shifted = chances + EPSILON
    loss = (target * (ops.log(target + EPSILON) - ops.log(shifted))).sum()
    ratio = target / shifted
    dscores = chances * ((chances * ratio).sum(axis=-1, keepdims=True) - ratio) * factor
    dquery, dweights, own_dkey = indexer.gradients(dscores)
    seen = slice(queries.positions.stop)
    dkey[seen] = dkey[seen] + own_dkey
    return float(loss.asnumpy()), dquery, dweights
