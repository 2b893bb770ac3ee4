"""Compressed attention's entries: pooled windows of tokens, their choice by an indexer, and the indexer's loss, of
MindSpore operators. Letters are those of `contract/entries.py`."""

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.numerics.dtypes import Array
from pynative.kernels.ops.elementwise import cast
from pynative.kernels.ops.sparse import EPSILON, NOTHING

FLOAT32 = mindspore.float32

_product_with_transposed = ops.BatchMatMul(transpose_b=True)
_transposed_product = ops.BatchMatMul(transpose_a=True)


def _windows(x: Tensor, size: int, nothing: float) -> Tensor:
    """Tokens [c, ratio, b, m d] as windows [c, m ratio, b, d], which overlap for m 2: each then begins with the tokens
    of the entry before it, the first with the value `nothing`."""
    if x.shape[-1] == size:
        return x
    before = ops.full((1, *x.shape[1:3], size), nothing, dtype=FLOAT32)
    earlier = ops.cat((before, x[:-1, ..., :size]), 0) if len(x) > 1 else before
    return ops.cat((earlier, x[..., size:]), 1)


def pool_windows(values: Tensor, gates: Tensor, bias: Tensor, ratio: int, size: int) -> Tensor:
    count, (_, batch, width) = values.shape[0] // ratio, values.shape
    inside, scores = (cast(x, FLOAT32)[: count * ratio].reshape(count, ratio, batch, width) for x in (values, gates))
    scores = _windows(scores + cast(bias, FLOAT32).expand_dims(1), size, -1e30)
    shares = ops.softmax(scores.swapaxes(1, -1), -1)
    return cast((shares * _windows(inside, size, 0.0).swapaxes(1, -1)).sum(-1).swapaxes(1, 2), values.dtype)


class _Scores:
    """The indexer's scores of the entries for each query, and their parts, in float32."""

    def __init__(self, query: Tensor, key: Tensor, weights: Tensor) -> None:
        self.query, self.key, self.weights = (cast(x, FLOAT32).swapaxes(0, 1) for x in (query, key, weights))
        batch, length, heads, _ = self.query.shape
        stacked = self.query.reshape(batch, length * heads, -1)
        self.products = ops.relu(_product_with_transposed(stacked, self.key).reshape(batch, length, heads, -1))
        """relu(query . key) [b, s, j, c] of each head."""

    def total(self) -> Tensor:
        """The scores [b, s, c]: the sum over heads of weight * relu(query . key)."""
        return (self.products * self.weights.expand_dims(-1)).sum(axis=2)


def choose_entries(query: Tensor, key: Tensor, weights: Tensor, topk: int, seen: Array) -> Tensor:
    scores = _Scores(query, key, weights).total()
    later = np.arange(key.shape[0]) >= seen.T[..., None]
    later = Tensor(np.ascontiguousarray(np.broadcast_to(later, scores.shape)))
    scores = ops.masked_fill(scores, later, NOTHING)
    count = min(topk, key.shape[0])
    lowest = ops.topk(scores, count, -1)[0][..., -1:]
    above, ties = scores > lowest, scores == lowest
    room = count - cast(above, FLOAT32).sum(axis=-1, keepdims=True)
    marks = cast(ties, FLOAT32)
    from_here = marks.sum(axis=-1, keepdims=True) - ops.cumsum(marks, -1) + marks
    kept = ops.logical_and(ops.logical_or(above, ops.logical_and(ties, from_here <= room)), scores > NOTHING)
    return ops.logical_not(kept).expand_dims(1)


def entries_target(q: Tensor, k: Tensor, hidden: Tensor, scale: float, maximum: Tensor, inverse_sum: Tensor) -> Tensor:
    length, batch, heads, size = q.shape
    queries = cast(q, FLOAT32).transpose(1, 2, 0, 3).reshape(batch, heads * length, size)
    keys = cast(k, FLOAT32)[:, :, 0].swapaxes(0, 1)
    scores = _product_with_transposed(queries * scale, keys).reshape(batch, heads, length, -1)
    chances = ops.exp(scores - maximum.expand_dims(-1)) * inverse_sum.expand_dims(-1)
    return ops.masked_fill(chances, hidden, 0.0).sum(axis=1)


def entries_gradient(
    query: Tensor, key: Tensor, weights: Tensor, hidden: Tensor, target: Tensor, factor: float
) -> tuple[float, Tensor, Tensor, Tensor]:
    scores, shown = _Scores(query, key, weights), cast(ops.logical_not(hidden[:, 0]), FLOAT32)
    some = (shown.sum(-1, keepdims=True) > 0).astype(FLOAT32)
    chances = ops.softmax(scores.total() + (shown - 1.0) * 1e30, -1) * shown * some
    total = target.sum(axis=-1, keepdims=True)
    target = target / (total + cast(total == 0, FLOAT32))
    shifted = chances + EPSILON
    loss = (target * (ops.log(target + EPSILON) - ops.log(shifted))).sum()
    ratio = target / shifted
    gradient = (chances * ((chances * ratio).sum(axis=-1, keepdims=True) - ratio) * factor).expand_dims(2)
    batch, length, heads, entries = scores.products.shape
    dweights = (gradient * scores.products).sum(axis=-1)
    dproducts = gradient * scores.weights.expand_dims(-1) * cast(scores.products > 0, FLOAT32)
    dproducts = dproducts.reshape(batch, length * heads, entries)
    dquery = ops.bmm(dproducts, scores.key).reshape(batch, length, heads, -1)
    dkey = _transposed_product(dproducts, scores.query.reshape(batch, length * heads, -1))
    return float(loss.asnumpy()), dquery.swapaxes(0, 1), dkey.swapaxes(0, 1), dweights.swapaxes(0, 1)
