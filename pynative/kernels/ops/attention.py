"""Scaled dot-product attention of MindSpore operators, with all the scores of a block at once.

q or s queries, k or s' keys; other letters are those of the contract.
"""

from functools import lru_cache, reduce
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy, ops

from parallel_core.attention.score_form import ScoreForm
from parallel_core.context import Ranges, as_array
from pynative.kernels.block import AttentionRule, Partial, Scores
from pynative.kernels.dropout import Key, attention_dropout_mask
from pynative.kernels.ops.elementwise import cast, shaped, soft_cap, soft_cap_slope, widened_on_cpu
from pynative.tape.autograd import Function

MASKED_SCORE = -10000.0

_product = ops.BatchMatMul()
_product_with_transposed = ops.BatchMatMul(transpose_b=True)
_transposed_product = ops.BatchMatMul(transpose_a=True)


@lru_cache(maxsize=8)
def causal_mask(size: int) -> Tensor:
    """Bool [size, size], True above the diagonal. The latest sizes are cached, so that all layers share one."""
    return from_numpy(~np.tri(size, dtype=bool))


@lru_cache(maxsize=8)
def left_out(queries: Ranges, keys: Ranges, causal: bool, form: ScoreForm) -> Tensor | None:
    """Bool [q, k], True for the keys that a query does not see: those before its window and, if `causal`, those after
    its own position. None if not `causal` and no key lies before a window. `queries`, `keys`: positions, the same if
    `causal`."""
    query_positions, key_positions = as_array(queries), as_array(keys)
    if form.sees_all(query_positions, key_positions):
        return causal_mask(len(query_positions)) if causal else None
    hidden = form.before_window(query_positions, key_positions)
    return from_numpy(hidden | (key_positions > query_positions[:, None]) if causal else hidden)


@lru_cache(maxsize=8)
def distances(queries: Ranges, keys: Ranges) -> Tensor:
    """Float32 [q, k]: each key's position minus each query's, from the positions of both."""
    return from_numpy((as_array(keys) - as_array(queries)[:, None]).astype(np.float32))


def before_first_keys(scores: Scores) -> Tensor | None:
    """Bool [b, 1, q, k], True for keys before the one that `first_keys` has for the query; None without these."""
    bounds = scores.block_first_keys
    if bounds is None:
        return None
    return from_numpy(as_array(scores.key_positions) < bounds[:, None, :, None])


def shown_to(chosen: Tensor, keys: int) -> Tensor:
    """Bool [b, q, keys], True for keys whose positions are among the query's in `chosen` [b, q, k], which are below
    `keys`; a negative one stands for none."""
    nowhere = ops.full_like(chosen, keys)
    places = ops.where(chosen < 0, nowhere, chosen)
    empty = ops.zeros((*chosen.shape[:2], keys + 1), mindspore.float32)
    return ops.scatter(empty, 2, places, ops.ones(chosen.shape, mindspore.float32))[..., :keys] > 0


def _not_chosen(scores: Scores) -> Tensor | None:
    """Bool [b, 1, q, k], True for the block's keys that the query did not choose; None where all are chosen."""
    if scores.chosen is None:
        return None
    shown = shown_to(scores.chosen[:, -scores.queries :], scores.seq_length)
    return ops.logical_not(_columns(shown, scores)).expand_dims(1)


def biases(scores: Scores, heads: int) -> Tensor | None:
    """Float32 [n, q, k]: the bias by head and distance (ALiBi) that is added to the scores of this rank's n = `heads`
    heads, after scale and cap; None where the rule has no bias."""
    if not scores.form.has_bias:
        return None
    slopes = from_numpy(scores.form.bias(scores.heads(heads), np.ones((1, 1), np.float32)))
    return slopes * distances(scores.query_positions, scores.key_positions)


def formed(values: Tensor, cap: float | None, added: Tensor | None) -> Tensor:
    """Scaled products `values` [b, n, q, k] after the model's `cap` (None: without; else the result is float32) and the
    bias `added` (None: without), before masks."""
    if cap is not None:
        values = soft_cap(cast(values, mindspore.float32), cap)
    return values if added is None else values + added


def hidden_scores(scores: Scores) -> Tensor | None:
    """Bool, broadcasting to [b, n, q, k], True for the scores that are left out: by the mask, chosen keys, documents,
    order or window. None only if no score is left out."""
    of_form = left_out(scores.query_positions, scores.key_positions, scores.is_causal, scores.form)
    given = _given(scores), _not_chosen(scores), before_first_keys(scores), of_form
    masks = [mask for mask in given if mask is not None]
    return reduce(ops.logical_or, masks) if masks else None


def _given(scores: Scores) -> Tensor | None:
    """The part [b or 1, 1, q, k] of the given mask that is the block's; None without a mask."""
    if scores.mask is None:
        return None
    return _columns(scores.mask[:, :, -scores.queries :], scores)


def _columns(rows: Tensor, scores: Scores) -> Tensor:
    """The columns of the block's keys, of rows [..., S] with a column for each key of the sequence."""
    parts = [rows[..., run.start : run.stop] for run in scores.key_positions]
    return parts[0] if len(parts) == 1 else ops.cat(parts, -1)


def dropout_masks(key: Key, rate: float, head_offset: int, shape: tuple[int, int, int, int]) -> Tensor:
    """Dropout masks of this rank's heads, float32 of `shape` [b, n, s, s'], of 0 and 1 / (1 - rate), rate rounded to
    1/65536; head_offset: number of the first head among all ranks'. ValueError for a rate outside of [0, 1)."""
    batch, heads, queries, keys = shape
    masks = [
        attention_dropout_mask(key, row, head_offset + head, (queries, keys), rate)
        for row in range(batch)
        for head in range(heads)
    ]
    return from_numpy(np.stack(masks).reshape(shape))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, added: Tensor | None, kept: Tensor | None,
    rule: AttentionRule,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The output [s, b, n * e], and for the backward: scaled queries, keys and values by group (`_by_group`), scores
    before the cap, [b, n, s, s'], and probabilities, of the same shape in float32.

    hidden, added, kept: mask, bias and dropout mask of the scores, or None.
    """
    (queries, batch, heads, _), (length, _, groups, _) = q.shape, k.shape
    scaled, keys, values = _by_group(q, groups) * rule.scale, _by_group(k, groups), _by_group(v, groups)
    products = shaped(_product_with_transposed(scaled, keys), batch, heads, queries, length)
    scores = formed(products, rule.form.soft_cap, added)
    if hidden is not None:
        scores = ops.masked_fill(scores, hidden, MASKED_SCORE)
    if rule.largest is not None:
        rule.report(ops.amax(cast(scores, mindspore.float32), (0, 2, 3)))
    probabilities = ops.softmax(cast(scores, mindspore.float32), -1)
    weights = _weights(probabilities, kept, values)
    out = _by_position(_product(weights, values), queries).reshape(queries, batch, -1)
    return out, scaled, keys, values, products, probabilities


def _weights(probabilities: Tensor, kept: Tensor | None, values: Tensor) -> Tensor:
    """The probabilities [b, n, s, s'] after dropout by the mask `kept` (None: without), by group and in the type of the
    values: [b, g, n/g * s, s']."""
    batch, groups, length, _ = values.shape
    weights = probabilities if kept is None else probabilities * kept
    return shaped(cast(weights, values.dtype), batch, groups, probabilities.size // (batch * groups * length), length)


def _attend_gradient(
    dout: Tensor, scaled: Tensor, keys: Tensor, values: Tensor, products: Tensor | None, probabilities: Tensor,
    hidden: Tensor | None, kept: Tensor | None, scale: float, cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(dq, dk, dv) from dout and what `_attend` gave. Scores that are left out have probability 0 and bring no
    gradient, except in a row that is masked everywhere: only then `hidden` is needed."""
    batch, heads, queries, length = probabilities.shape
    by_group = _by_group(dout.reshape(queries, batch, heads, -1), keys.shape[1])
    dv = _transposed_product(_weights(probabilities, kept, values), by_group)
    dweights = cast(shaped(_product_with_transposed(by_group, values), *probabilities.shape), mindspore.float32)
    dprobabilities = dweights if kept is None else dweights * kept
    dscores = probabilities * (dprobabilities - (dprobabilities * probabilities).sum(-1, True))
    if hidden is not None:
        dscores = ops.masked_fill(dscores, hidden, 0.0)
    if products is not None and cap is not None:
        dscores = dscores * soft_cap_slope(products, cap)
    dscores = shaped(cast(dscores, keys.dtype), batch, keys.shape[1], scaled.shape[2], length)
    dq = _by_position(_product(dscores, keys) * scale, queries)
    return dq, _by_position(_transposed_product(dscores, scaled), length), _by_position(dv, length)


class _Attention(Function):
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor | None,
        added: Tensor | None,
        kept: Tensor | None,
        rule: AttentionRule,
    ) -> Tensor:
        out, *saved, products, probabilities = _attend(q, k, v, hidden, added, kept, rule)
        ctx.save_for_backward(*saved, probabilities)
        cap, has_empty_rows = rule.form.soft_cap, rule.mask is not None
        ctx.products, ctx.hidden = None if cap is None else products, hidden if has_empty_rows else None
        ctx.kept, ctx.scale, ctx.cap = kept, rule.scale, cap
        return out

    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        scaled, keys, values, probabilities = ctx.saved_tensors
        gradients = _attend_gradient(
            dout, scaled, keys, values, ctx.products, probabilities, ctx.hidden, ctx.kept, ctx.scale, ctx.cap
        )
        return *gradients, *(None,) * 4


def _by_group(x: Tensor, groups: int) -> Tensor:
    """Heads [s, b, n or g, d] as [b, g, n/g * s, d], no view: every product with a view would copy it anew. The query
    heads of a group stand below one another, so that keys and values need no copies for them."""
    rows, batch, heads, size = x.shape
    return shaped(x.permute(1, 2, 0, 3).contiguous(), batch, groups, heads * rows // groups, size)


def _by_position(x: Tensor, rows: int) -> Tensor:
    """The inverse of `_by_group` as a view: [b, g, n/g * s, d] -> [s, b, n or g, d], s = `rows`."""
    batch, groups, length, size = x.shape
    return shaped(x, batch, groups * length // rows, rows, size).permute(2, 0, 1, 3)


@widened_on_cpu("q")
def attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    scores, shape = Scores.whole(rule, q, k), (*q.shape[1:3], len(q), len(k))
    kept = dropout_masks(rule.dropout_key, rule.dropout_rate, rule.head_offset, shape) if rule.dropout_rate else None
    hidden, added = hidden_scores(scores), biases(scores, q.shape[2])
    return _Attention.apply(q, k, v, hidden, added, kept, rule)


class _Block:
    """The arrays of one block with heads before positions, float32; the query heads of a group stand below one another
    (`_by_group`)."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> None:
        self.scores = scores
        self.queries, (_, self.batch, self.heads, _) = scores.queries, q.shape
        self.groups = k.shape[2]
        self.q, self.k, self.v = map(self.by_group, (q[-self.queries :], k[: scores.keys], v[: scores.keys]))
        self.shape = (self.batch, self.heads, self.queries, scores.keys)

    def by_group(self, x: Tensor) -> Tensor:
        """Queries [s, b, n, d] as float32 [b, g, n/g * s, d], keys and values [s', b, g, d] as [b, g, s', d]."""
        return _by_group(cast(x, mindspore.float32), self.groups)

    def rows_by_group(self, x: Tensor) -> Tensor:
        """Rows [s, b, n * e] as float32 [b, g, n/g * s, e]."""
        return self.by_group(x.reshape(*x.shape[:2], self.heads, -1))

    def grouped(self, x: Tensor) -> Tensor:
        """Scores [b, n, s, s'] as [b, g, n/g * s, s']."""
        return x.reshape(self.batch, self.groups, -1, self.scores.keys)

    def products(self) -> Tensor:
        """The scaled products of queries and keys, [b, n, s, s']."""
        return _product_with_transposed(self.q * self.scores.scale, self.k).reshape(self.shape)

    def score_values(self, products: Tensor) -> Tensor:
        """The scores [b, n, s, s'] made of `products`: after cap and bias, MASKED_SCORE where they are masked."""
        cap, added = self.scores.form.soft_cap, biases(self.scores, self.heads)
        values, mask = formed(products, cap, added), hidden_scores(self.scores)
        return values if mask is None else ops.masked_fill(values, mask, MASKED_SCORE)

    def products_gradient(self, dscores: Tensor, products: Tensor) -> Tensor:
        """The gradient of `products` from that of the scores: 0 where they are masked, times the slope of a cap."""
        mask, cap = hidden_scores(self.scores), self.scores.form.soft_cap
        if mask is not None:
            dscores = ops.masked_fill(dscores, mask, 0.0)
        return dscores if cap is None else dscores * soft_cap_slope(products, cap)

    def dropout(self) -> Tensor | float:
        """The block's dropout masks, float32 [b, n, s, s'], or 1 without dropout."""
        rows = slice(0, self.queries)
        masks = [self.scores.dropout_mask(b, n, rows) for b in range(self.batch) for n in range(self.heads)]
        drawn = [mask for mask in masks if mask is not None]
        return from_numpy(np.stack(drawn).reshape(self.shape)) if drawn else 1.0


def attention_block(q: Tensor, k: Tensor, v: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    if scores.sees_nothing and partial is not None:
        return partial
    block = _Block(q, k, v, scores)
    values = block.score_values(block.products())
    maximum = ops.amax(values, -1)
    if scores.largest is not None:
        scores.report(ops.amax(maximum, (0, 2)))
    exponentials = ops.exp(values - maximum.expand_dims(-1))
    inverse_sum = 1 / exponentials.sum(axis=-1)
    weights = exponentials * block.dropout() * inverse_sum.expand_dims(-1)
    out = _by_position(_product(block.grouped(weights), block.v), block.queries)
    own = Partial(out.reshape(*out.shape[:2], -1), maximum, inverse_sum)
    return own if partial is None else merged(partial, own, block.heads)


def merged(partial: Partial, block: Partial, heads: int) -> Partial:
    """A new Partial: `partial` after one more block of keys. The last queries of `partial` are those of `block`, and
    their results over both are put together; the results of earlier queries stay. heads: n."""
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
    if scores.sees_nothing and dq is not None:
        return dq, *(ops.zeros(x.shape, mindspore.float32) for x in (k, v))
    block, first = _Block(q, k, v, scores), len(q) - scores.queries
    dout_bgse, out_bgse = block.rows_by_group(dout[first:]), block.rows_by_group(partial.out[first:])
    products = block.products()
    exponentials = ops.exp(block.score_values(products) - partial.maximum[..., first:].expand_dims(-1))
    probabilities, kept = exponentials * partial.inverse_sum[..., first:].expand_dims(-1), block.dropout()
    dv = _transposed_product(block.grouped(probabilities * kept), dout_bgse)
    delta = (dout_bgse * out_bgse).sum(axis=-1).reshape(*block.shape[:3], 1)
    dscores = probabilities * (_product_with_transposed(dout_bgse, block.v).reshape(block.shape) * kept - delta)
    dscores = block.grouped(block.products_gradient(dscores, products) * scores.scale)
    own_dq = _by_position(_product(dscores, block.k), block.queries)
    dk = _transposed_product(dscores, block.q)
    of_keys = (padded(_by_position(x, scores.keys), len(k)) for x in (dk, dv))
    return added_last(dq, own_dq), *of_keys


def added_last(whole: Tensor | None, last: Tensor) -> Tensor:
    """`whole` with `last` added to its last rows (axis 0), a new tensor; `last` itself where `whole` is None."""
    if whole is None:
        return last
    first = len(whole) - len(last)
    return whole + last if not first else ops.cat((whole[:first], whole[first:] + last))


def padded(gradient: Tensor, rows: int) -> Tensor:
    """The gradient [s', b, g, d] of the block's keys with zeros for the keys after them, [rows, b, g, d], float32: a
    new tensor, no view."""
    missing = rows - len(gradient)
    if not missing:  # with one text and one group a view is contiguous, and `contiguous` would return it without a copy
        return gradient * 1.0 if gradient.is_contiguous() else gradient.contiguous()
    return ops.cat((gradient, ops.zeros((missing, *gradient.shape[1:]), mindspore.float32)))
