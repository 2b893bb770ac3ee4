"""Scaled dot-product attention in blocks of query rows, on the host (after FlashAttention, Dao et al. 2022).

Only the scores of `QUERY_ROWS` queries of one head exist at a time; with a causal mask the keys above the diagonal are
never multiplied. Kept for backward: q, k, v, the output, and per row the maximum score m and 1/l, l = sum exp(s - m).
Backward computes e = exp(s - m) again and, with p = e/l, D = rowsum(dout * out) and P the dropout mask:
    dv = (e P)^T (dout/l)     ds = e ((dout/l) v^T P - D/l)     dq = scale ds k     dk = scale ds^T q
Dividing dout, not e, by l saves a pass over the scores. So do the columns appended to the operands of two products:
[q, -m] [k, 1]^T = s - m and [dout, -D] [v, 1]^T = dout v^T - D.

Keeping e instead of computing it again was measured: forward and backward together 7% faster at a sequence of 512, 24%
at 2048 (a hundredth of a small model's step), for s^2/2 floats a head and layer. Memory won.
"""

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.block import Partial, Scores
from pynative.kernels.dropout import Key
from pynative.kernels.host.arrays import array_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import run, spans
from pynative.rounding import widened

QUERY_ROWS = 256
"""Rows of a block of scores. With 128 one thread is as fast and less is multiplied above the diagonal, but two threads
lose half as much again to the GIL."""

MASKED_SCORE = np.float32(-10000.0)
"""Megatron's value for masked scores. A row that is masked everywhere attends evenly, without NaN."""


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left right as a new float32 array."""
    out = np.empty((left.shape[0], right.shape[1]), np.float32)
    ENGINE.matmul(left, right, out)
    return out


def _score_limits(scores: Scores, queries: int) -> Callable[[int, slice], np.ndarray | None]:
    """A function (batch, query rows) -> upper limits of the last columns of their scores, None without any."""
    if scores.mask is not None:
        hidden = _columns(array_of(scores.mask)[:, :, -queries:], scores)
        limits = np.where(hidden, MASKED_SCORE, np.float32(np.inf))
        return lambda batch, rows: limits[batch % len(limits), 0, rows]
    if not scores.causal:
        return lambda batch, rows: None
    size = min(QUERY_ROWS, queries)
    triangle = np.where(np.tri(size, dtype=bool), np.float32(np.inf), MASKED_SCORE)
    return lambda batch, rows: triangle[: rows.stop - rows.start, : rows.stop - rows.start]


def _columns(rows: np.ndarray, scores: Scores) -> np.ndarray:
    """Of a mask's rows the columns of a block's keys."""
    parts = [rows[..., run.start : run.stop] for run in scores.key_positions]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _limit(scores: np.ndarray, limits: np.ndarray | None) -> None:
    """Masked scores to -10000, in place. The limits cover the last columns: the others have none."""
    if limits is not None:
        tail = scores[:, scores.shape[1] - limits.shape[1] :]
        np.minimum(tail, limits, out=tail)


def _scaled_with_column(rows: np.ndarray, factor: np.ndarray | np.float32, column: np.ndarray | float) -> np.ndarray:
    """[rows * factor, column] as one float32 array [s, d + 1]."""
    extended = np.empty((rows.shape[0], rows.shape[1] + 1), np.float32)
    np.multiply(widened(rows), factor, out=extended[:, :-1])
    extended[:, -1] = column
    return extended


class _Heads:
    """Attention of arrays q [s, b, n, d], k and v [s', b, g, d] of one type; a task is one (batch, group)."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: Scores) -> None:
        self.q, self.k, self.v, self.scores = q, k, v, scores
        self.queries, self.batch, self.heads, self.head_size = q.shape
        self.keys, self.groups = k.shape[0], k.shape[2]
        self.limits = _score_limits(scores, self.queries)
        self.blocks = [slice(*span) for span in spans(self.queries, QUERY_ROWS)]

    def tasks(self) -> list[tuple[int, int]]:
        return [(batch, group) for batch in range(self.batch) for group in range(self.groups)]

    def heads_of(self, group: int) -> range:
        size = self.heads // self.groups
        return range(group * size, (group + 1) * size)

    def visible_keys(self, row_stop: int) -> int:
        """Keys that queries before `row_stop` can see; the probability of the others is exactly 0."""
        return row_stop if self.scores.causal and self.scores.mask is None else self.keys

    def dropout(self, batch: int, head: int, rows: slice, keys: int) -> np.ndarray | None:
        mask = self.scores.dropout_mask(batch, head, rows)
        return None if mask is None else mask[:, :keys]

    def forward(self, out: np.ndarray, maximum: np.ndarray, inverse_sum: np.ndarray) -> None:
        """Fill out [s, b, n, d], maximum and inverse_sum [b, n, s]."""

        def task(batch: int, group: int) -> None:
            keys, values = (np.ascontiguousarray(widened(array[:, batch, group])) for array in (self.k, self.v))
            for head in self.heads_of(group):
                queries = widened(self.q[:, batch, head]) * np.float32(self.scores.scale)
                for rows in self.blocks:
                    out[rows, batch, head] = self._forward_block(
                        queries[rows], keys, values, (batch, head, rows), maximum[batch, head], inverse_sum[batch, head]
                    )

        run(task, self.tasks())

    def _forward_block(self, queries, keys, values, where, maximum, inverse_sum) -> np.ndarray:
        batch, head, rows = where
        visible = self.visible_keys(rows.stop)
        scores, total = _product(queries, keys[:visible].T), inverse_sum[rows]
        _limit(scores, self.limits(batch, rows))
        ENGINE.softmax_exponentials(scores, scores, maximum[rows], total)
        np.divide(1, total, out=total)
        kept = self.dropout(batch, head, rows, visible)
        if kept is not None:
            scores *= kept
        out = _product(scores, values[:visible])
        out *= total[:, None]
        return out

    def backward(self, dout, out, maximum, inverse_sum, gradients: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Fill gradients (of q, k and v) from dout; the other arguments are those of forward."""
        dq, dk, dv = gradients
        scale, one = np.float32(self.scores.scale), np.float32(1)

        def task(batch: int, group: int) -> None:
            keys, values = (_scaled_with_column(array[:, batch, group], one, 1.0) for array in (self.k, self.v))
            key_gradient, value_gradient = np.zeros((2, self.keys, self.head_size), np.float32)
            for head in self.heads_of(group):
                inverse = inverse_sum[batch, head]
                queries = _scaled_with_column(self.q[:, batch, head], scale, -maximum[batch, head])
                delta = np.einsum("sd,sd->s", widened(dout[:, batch, head]), widened(out[:, batch, head]))
                upstream = _scaled_with_column(dout[:, batch, head], inverse[:, None], -delta * inverse)
                for rows in self.blocks:
                    dq[rows, batch, head] = self._backward_block(
                        queries, keys, values, upstream, (batch, head, rows), key_gradient, value_gradient
                    )
            dk[:, batch, group], dv[:, batch, group] = key_gradient, value_gradient

        run(task, self.tasks())

    def _backward_block(self, queries, keys, values, upstream, where, key_gradient, value_gradient) -> np.ndarray:
        """Add this block's part to the gradients of keys and values; return the gradient of its queries."""
        batch, head, rows = where
        visible = self.visible_keys(rows.stop)
        weights = _product(queries[rows], keys[:visible].T)
        limits = self.limits(batch, rows)
        _limit(weights, None if limits is None else limits + queries[rows, -1:])
        ENGINE.exponential(weights, weights)
        kept = self.dropout(batch, head, rows, visible)
        dropped = weights if kept is None else weights * kept
        ENGINE.matmul(dropped.T, upstream[rows, :-1], value_gradient[:visible], accumulate=True)
        scores_gradient = self._scores_gradient(upstream[rows], values[:visible], kept)
        scores_gradient *= weights
        if limits is not None and self.scores.mask is not None:
            scores_gradient *= limits > 0
        ENGINE.matmul(scores_gradient.T, queries[rows, :-1], key_gradient[:visible], accumulate=True)
        query_gradient = _product(scores_gradient, keys[:visible, :-1])
        query_gradient *= np.float32(self.scores.scale)
        return query_gradient

    def _scores_gradient(self, upstream: np.ndarray, values: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
        """(dout v^T kept - D) / l of a block, before the factor e."""
        if kept is None:
            return _product(upstream, values.T)
        gradient = _product(upstream[:, :-1], values[:, :-1].T)
        gradient *= kept
        gradient += upstream[:, -1:]
        return gradient


def _forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: Scores, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """out [s, b, n, d] of this type, maximum and inverse sum [b, n, s] float32."""
    heads = _Heads(q, k, v, scores)
    out = np.empty(q.shape, dtype)
    maximum, inverse_sum = np.empty((2, heads.batch, heads.heads, heads.queries), np.float32)
    heads.forward(out, maximum, inverse_sum)
    return out, maximum, inverse_sum


class _Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v, scores):
        q_array = array_of(q)
        out, maximum, inverse_sum = _forward(q_array, array_of(k), array_of(v), scores, q_array.dtype)
        result = from_numpy(out.reshape(*out.shape[:2], -1))
        ctx.scores = scores
        ctx.save_for_backward(q, k, v, result, from_numpy(maximum), from_numpy(inverse_sum))
        return result

    @staticmethod
    def backward(ctx, dy):
        q, k, v, out, maximum, inverse_sum = ctx.saved_tensors
        heads, dout = _Heads(array_of(q), array_of(k), array_of(v), ctx.scores), array_of(dy)
        gradients = tuple(np.empty(array.shape, dout.dtype) for array in (heads.q, heads.k, heads.v))
        shape = heads.q.shape
        heads.backward(
            dout.reshape(shape), array_of(out).reshape(shape), array_of(maximum), array_of(inverse_sum), gradients
        )
        return *map(from_numpy, gradients), None


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool = True, mask: Tensor | None = None,
    dropout_rate: float = 0.0, dropout_key: Key | None = None, head_offset: int = 0,
) -> Tensor:  # fmt: skip
    scores = Scores(
        scale=scale, causal=causal, mask=mask, dropout_rate=dropout_rate, dropout_key=dropout_key or (),
        head_offset=head_offset, query_positions=(range(len(q)),), key_positions=(range(len(k)),),
        seq_length=len(k),
    )  # fmt: skip
    return _Attention.apply(q, k, v, scores)


def _arrays(q: Tensor, kv: Tensor, scores: Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The block's queries, keys and values."""
    keys, values = array_of(kv)[:, : scores.keys]
    return array_of(q)[-scores.queries :], keys, values


def attention_block(q: Tensor, kv: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    out, maximum, inverse_sum = _forward(*_arrays(q, kv, scores), scores, np.dtype(np.float32))
    if partial is None:
        return Partial(from_numpy(out.reshape(*out.shape[:2], -1)), from_numpy(maximum), from_numpy(inverse_sum))
    _merge(partial, out, maximum, inverse_sum)
    return partial


def _merge(partial: Partial, out: np.ndarray, maximum: np.ndarray, inverse_sum: np.ndarray) -> None:
    """Add a block's result to that of its queries, the last ones of `partial`, in place."""
    queries = maximum.shape[-1]
    old_out = array_of(partial.out)[-queries:].reshape(out.shape)
    old_maximum, old_inverse = (array_of(x)[..., -queries:] for x in (partial.maximum, partial.inverse_sum))
    highest = np.maximum(old_maximum, maximum)
    old_weight, weight = np.exp(old_maximum - highest) / old_inverse, np.exp(maximum - highest) / inverse_sum
    inverse = 1 / (old_weight + weight)
    old_out *= (old_weight * inverse).transpose(2, 0, 1)[..., None]
    out *= (weight * inverse).transpose(2, 0, 1)[..., None]
    old_out += out
    old_maximum[...], old_inverse[...] = highest, inverse


def attention_block_gradient(
    q: Tensor, kv: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    heads = _Heads(*_arrays(q, kv, scores), scores)
    last = slice(-scores.queries, None)
    own_dq, dkv = np.empty(heads.q.shape, np.float32), np.zeros(kv.shape, np.float32)
    heads.backward(
        array_of(dout)[last].reshape(heads.q.shape), array_of(partial.out)[last].reshape(heads.q.shape),
        array_of(partial.maximum)[..., last], array_of(partial.inverse_sum)[..., last],
        (own_dq, *dkv[:, : scores.keys]),
    )  # fmt: skip
    if dq is None:
        return from_numpy(own_dq), from_numpy(dkv)
    array_of(dq)[last] += own_dq
    return dq, from_numpy(dkv)
