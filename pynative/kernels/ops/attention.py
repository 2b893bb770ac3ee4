"""Scaled dot-product attention of MindSpore operators, with all the scores of a block at once."""

from functools import lru_cache

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy, ops

from pynative.autograd import Function
from pynative.kernels.block import Partial, Scores
from pynative.kernels.dropout import Key, attention_dropout_mask
from pynative.kernels.ops.elementwise import cast

MASKED_SCORE = -10000.0

_product = ops.BatchMatMul()
_product_with_transposed = ops.BatchMatMul(transpose_b=True)
_transposed_product = ops.BatchMatMul(transpose_a=True)


@lru_cache(maxsize=8)
def causal_mask(size: int) -> Tensor:
    """Bool [size, size], True above the diagonal: made once for all layers."""
    return from_numpy(~np.tri(size, dtype=bool))


def dropout_masks(key: Key, rate: float, head_offset: int, shape: tuple[int, int, int, int]) -> Tensor:
    """Masks of all heads, float32 of shape [b, n, s, s']."""
    batch, heads, queries, keys = shape
    masks = [
        attention_dropout_mask(key, row, head_offset + head, (queries, keys), rate)
        for row in range(batch)
        for head in range(heads)
    ]
    return from_numpy(np.stack(masks).reshape(shape))


class _Scores(Function):
    """scale q k^T, masked: q [s, b, n, d], k [s', b, g, d] -> float32 [b, n, s, s'].

    Probabilities of masked scores are 0 and bring no gradient here, except in a row that is masked everywhere, which
    only a mask that is given can have.
    """

    @staticmethod
    def forward(ctx, q, k, scale, mask, has_empty_rows):
        ctx.scale, ctx.dtype, ctx.mask = scale, q.dtype, mask if has_empty_rows else None
        scaled, keys = _by_group(q * scale, k.shape[2]), _by_group(k, k.shape[2])
        ctx.save_for_backward(scaled, keys)
        scores = _product_with_transposed(scaled, keys).reshape(k.shape[1], q.shape[2], len(q), len(k))
        return cast(scores if mask is None else ops.masked_fill(scores, mask, MASKED_SCORE), mindspore.float32)

    @staticmethod
    def backward(ctx, dscores):
        scaled, keys = ctx.saved_tensors
        batch, _, queries, _ = dscores.shape
        if ctx.mask is not None:
            dscores = ops.masked_fill(dscores, ctx.mask, 0.0)
        dscores = cast(dscores, ctx.dtype).reshape(batch, keys.shape[1], -1, keys.shape[2])
        dq = _by_position(_product(dscores, keys), queries) * ctx.scale
        return dq, _by_position(_transposed_product(dscores, scaled), keys.shape[2]), None, None, None


class _WeightedSum(Function):
    """probabilities [b, n, s, s'] v [s', b, g, e] -> [s, b, n * e]."""

    @staticmethod
    def forward(ctx, probabilities, v):
        batch, _, queries, keys = probabilities.shape
        ctx.shape, ctx.dtype, groups = probabilities.shape, probabilities.dtype, v.shape[2]
        weights = cast(probabilities, v.dtype).reshape(batch, groups, -1, keys)
        values = _by_group(v, groups)
        ctx.save_for_backward(weights, values)
        return _by_position(_product(weights, values), queries).reshape(queries, batch, -1)

    @staticmethod
    def backward(ctx, dout):
        weights, values = ctx.saved_tensors
        batch, heads, queries, keys = ctx.shape
        dout = _by_group(dout.reshape(queries, batch, heads, -1), weights.shape[1])
        dweights = cast(_product_with_transposed(dout, values).reshape(ctx.shape), ctx.dtype)
        return dweights, _by_position(_transposed_product(weights, dout), keys)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """[s, b, n or g, d] -> [b, g, n/g * s, d]: the query heads of a group stand below one another, so that keys and
    values need no copies for them."""
    return x.transpose(1, 2, 0, 3).reshape(x.shape[1], groups, -1, x.shape[3])


def _by_position(x: Tensor, rows: int) -> Tensor:
    """The inverse: [b, g, n/g * s, d] -> [s, b, n or g, d]."""
    return x.reshape(x.shape[0], -1, rows, x.shape[3]).transpose(2, 0, 1, 3)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = True, mask: Tensor | None = None,
    dropout_rate: float = 0.0, dropout_key: Key | None = None, head_offset: int = 0,
) -> Tensor:  # fmt: skip
    left_out = causal_mask(len(q)) if causal and mask is None else mask
    probabilities = ops.softmax(_Scores.apply(q, k, scale, left_out, mask is not None), -1)
    if dropout_rate:
        masks = dropout_masks(dropout_key or (), dropout_rate, head_offset, probabilities.shape)
        probabilities = probabilities * masks
    return _WeightedSum.apply(probabilities, v)


class _Block:
    """The arrays of one block, heads first, in float32: the query heads of a group stand below one another."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> None:
        self.scores = scores
        self.queries, (_, self.batch, self.heads, _) = scores.queries, q.shape
        self.groups = k.shape[2]
        self.q, self.k, self.v = map(self.by_group, (q[-self.queries :], k[: scores.keys], v[: scores.keys]))
        self.shape = (self.batch, self.heads, self.queries, scores.keys)

    def by_group(self, x: Tensor) -> Tensor:
        """[s, b, n or g, d] -> [b, g, n/g * s, d]."""
        return _by_group(cast(x, mindspore.float32), self.groups)

    def rows_by_group(self, x: Tensor) -> Tensor:
        """[s, b, n * e] -> [b, g, n/g * s, e]."""
        return self.by_group(x.reshape(*x.shape[:2], self.heads, -1))

    def grouped(self, x: Tensor) -> Tensor:
        """[b, n, s, s'] -> [b, g, n/g * s, s']."""
        return x.reshape(self.batch, self.groups, -1, self.scores.keys)

    def mask(self) -> Tensor | None:
        """Bool, broadcasting to [b, n, s, s'], True = masked."""
        if self.scores.mask is not None:
            rows = self.scores.mask[:, :, -self.queries :]
            return ops.cat([rows[..., run.start : run.stop] for run in self.scores.key_positions], -1)
        return causal_mask(self.queries) if self.scores.causal else None

    def score_values(self) -> Tensor:
        """[b, n, s, s']."""
        values = _product_with_transposed(self.q * self.scores.scale, self.k).reshape(self.shape)
        mask = self.mask()
        return values if mask is None else ops.masked_fill(values, mask, MASKED_SCORE)

    def dropout(self) -> Tensor | float:
        """Float32 masks [b, n, s, s'], or 1."""
        rows = slice(0, self.queries)
        masks = [self.scores.dropout_mask(b, n, rows) for b in range(self.batch) for n in range(self.heads)]
        drawn = [mask for mask in masks if mask is not None]
        return from_numpy(np.stack(drawn).reshape(self.shape)) if drawn else 1.0


def attention_block(q: Tensor, k: Tensor, v: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    block = _Block(q, k, v, scores)
    values = block.score_values()
    maximum = ops.amax(values, -1)
    exponentials = ops.exp(values - maximum.expand_dims(-1))
    inverse_sum = 1 / exponentials.sum(axis=-1)
    weights = exponentials * block.dropout() * inverse_sum.expand_dims(-1)
    out = _by_position(_product(block.grouped(weights), block.v), block.queries)
    own = Partial(out.reshape(*out.shape[:2], -1), maximum, inverse_sum)
    return own if partial is None else merged(partial, own, block.heads)


def merged(partial: Partial, block: Partial, heads: int) -> Partial:
    """`partial` with a block's result added to that of its queries, the last ones."""
    queries = block.maximum.shape[-1]
    first = partial.maximum.shape[-1] - queries
    old_maximum, old_inverse = partial.maximum[..., first:], partial.inverse_sum[..., first:]
    highest = ops.maximum(old_maximum, block.maximum)
    old_weight = ops.exp(old_maximum - highest) / old_inverse
    weight = ops.exp(block.maximum - highest) / block.inverse_sum
    inverse = 1 / (old_weight + weight)

    def weighted(out: Tensor, factor: Tensor) -> Tensor:
        by_head = out.reshape(queries, out.shape[1], heads, -1)
        return (by_head * (factor * inverse).transpose(2, 0, 1).expand_dims(-1)).reshape(out.shape)

    out = weighted(partial.out[first:], old_weight) + weighted(block.out, weight)
    if not first:
        return Partial(out, highest, inverse)
    return Partial(
        ops.cat((partial.out[:first], out)),
        ops.cat((partial.maximum[..., :first], highest), -1),
        ops.cat((partial.inverse_sum[..., :first], inverse), -1),
    )


def attention_block_gradient(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    block, first = _Block(q, k, v, scores), len(q) - scores.queries
    dout_bgse, out_bgse = block.rows_by_group(dout[first:]), block.rows_by_group(partial.out[first:])
    exponentials = ops.exp(block.score_values() - partial.maximum[..., first:].expand_dims(-1))
    probabilities, kept = exponentials * partial.inverse_sum[..., first:].expand_dims(-1), block.dropout()
    dv = _transposed_product(block.grouped(probabilities * kept), dout_bgse)
    delta = (dout_bgse * out_bgse).sum(axis=-1).reshape(*block.shape[:3], 1)
    dscores = probabilities * (_product_with_transposed(dout_bgse, block.v).reshape(block.shape) * kept - delta)
    mask = block.mask()
    if mask is not None:
        dscores = ops.masked_fill(dscores, mask, 0.0)
    dscores = block.grouped(dscores * scores.scale)
    own_dq = _by_position(_product(dscores, block.k), block.queries)
    dk = _transposed_product(dscores, block.q)
    of_keys = (padded(_by_position(x, scores.keys), len(k)) for x in (dk, dv))
    return added_last(dq, own_dq), *of_keys


def added_last(whole: Tensor | None, last: Tensor) -> Tensor:
    """`whole` with `last` added to its last rows."""
    if whole is None:
        return last
    first = len(whole) - len(last)
    return whole + last if not first else ops.cat((whole[:first], whole[first:] + last))


def padded(gradient: Tensor, rows: int) -> Tensor:
    """Zeros for the keys after the block's: [s', b, g, d] -> [s, b, g, d], no view: more is added to it in place."""
    missing = rows - len(gradient)
    if not missing:
        return gradient.contiguous()
    return ops.cat((gradient, ops.zeros((missing, *gradient.shape[1:]), mindspore.float32)))
