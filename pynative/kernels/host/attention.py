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
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.dropout import Key, attention_dropout_mask
from pynative.kernels.host.arrays import as_float32, tensor_like
from pynative.kernels.host.threads import run, spans

QUERY_ROWS = 256
"""Rows of a block of scores. With 128 one thread is as fast and less is multiplied above the diagonal, but two threads
lose half as much again to the GIL."""

MASKED_SCORE = np.float32(-10000.0)
"""Megatron's value for masked scores. A row that is masked everywhere attends evenly, without NaN."""


@dataclass(frozen=True)
class Setting:
    """What attention is asked for besides q, k and v; `mask` is bool [b or 1, 1, s, s], True = masked out."""

    scale: float
    causal: bool
    mask: np.ndarray | None
    dropout_rate: float
    dropout_key: Key
    head_offset: int

    def limits(self, queries: int) -> Callable[[int, slice], np.ndarray | None]:
        """A function (batch, query rows) -> upper limits of the last columns of their scores, None without any."""
        if self.mask is not None:
            limits = np.where(self.mask, MASKED_SCORE, np.float32(np.inf))
            return lambda batch, rows: limits[batch % len(limits), 0, rows]
        if not self.causal:
            return lambda batch, rows: None
        size = min(QUERY_ROWS, queries)
        triangle = np.where(np.tri(size, dtype=bool), np.float32(np.inf), MASKED_SCORE)
        return lambda batch, rows: triangle[: rows.stop - rows.start, : rows.stop - rows.start]

    def visible_keys(self, row_stop: int, keys: int) -> int:
        """Keys that queries before `row_stop` can see; the probability of the others is exactly 0."""
        return row_stop if self.causal and self.mask is None else keys

    def dropout(self, batch: int, head: int, shape: tuple[int, int], rows: slice, keys: int) -> np.ndarray | None:
        if not self.dropout_rate:
            return None
        head += self.head_offset
        return attention_dropout_mask(self.dropout_key, batch, head, shape, self.dropout_rate, rows)[:, :keys]


def _limit(scores: np.ndarray, limits: np.ndarray | None) -> None:
    """Masked scores to -10000, in place. The limits cover the last columns: the others have none."""
    if limits is not None:
        tail = scores[:, scores.shape[1] - limits.shape[1] :]
        np.minimum(tail, limits, out=tail)


def _scaled_with_column(rows: np.ndarray, factor: np.ndarray | np.float32, column: np.ndarray | float) -> np.ndarray:
    """[rows * factor, column] as one array [s, d + 1]."""
    extended = np.empty((rows.shape[0], rows.shape[1] + 1), np.float32)
    np.multiply(rows, factor, out=extended[:, :-1])
    extended[:, -1] = column
    return extended


class _Heads:
    """Attention of arrays q [s, b, n, d], k and v [s', b, g, d] under a setting; a task is one (batch, group)."""

    def __init__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, setting: Setting) -> None:
        self.q, self.k, self.v, self.setting = q, k, v, setting
        self.queries, self.batch, self.heads, self.head_size = q.shape
        self.keys, self.groups = k.shape[0], k.shape[2]
        self.limits = setting.limits(self.queries)
        self.blocks = [slice(*span) for span in spans(self.queries, QUERY_ROWS)]

    def tasks(self) -> list[tuple[int, int]]:
        return [(batch, group) for batch in range(self.batch) for group in range(self.groups)]

    def heads_of(self, group: int) -> range:
        size = self.heads // self.groups
        return range(group * size, (group + 1) * size)

    def dropout(self, batch: int, head: int, rows: slice, keys: int) -> np.ndarray | None:
        return self.setting.dropout(batch, head, (self.queries, self.keys), rows, keys)

    def forward(self, out: np.ndarray, maximum: np.ndarray, inverse_sum: np.ndarray) -> None:
        """Fill out [s, b, n, d], maximum and inverse_sum [b, n, s]."""

        def task(batch: int, group: int) -> None:
            keys, values = np.ascontiguousarray(self.k[:, batch, group]), np.ascontiguousarray(self.v[:, batch, group])
            for head in self.heads_of(group):
                queries = self.q[:, batch, head] * np.float32(self.setting.scale)
                for rows in self.blocks:
                    out[rows, batch, head] = self._forward_block(
                        queries[rows], keys, values, (batch, head, rows), maximum[batch, head], inverse_sum[batch, head]
                    )

        run(task, self.tasks())

    def _forward_block(self, queries, keys, values, where, maximum, inverse_sum) -> np.ndarray:
        batch, head, rows = where
        visible = self.setting.visible_keys(rows.stop, self.keys)
        scores = np.matmul(queries, keys[:visible].T)
        _limit(scores, self.limits(batch, rows))
        maximum[rows] = scores.max(axis=1)
        scores -= maximum[rows, None]
        np.exp(scores, out=scores)
        inverse_sum[rows] = 1 / scores.sum(axis=1)
        kept = self.dropout(batch, head, rows, visible)
        if kept is not None:
            scores *= kept
        return np.matmul(scores, values[:visible]) * inverse_sum[rows, None]

    def backward(self, dout, out, maximum, inverse_sum, gradients: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        """Fill gradients (of q, k and v) from dout; the other arguments are those of forward."""
        dq, dk, dv = gradients
        scale, one = np.float32(self.setting.scale), np.float32(1)

        def task(batch: int, group: int) -> None:
            keys, values = (_scaled_with_column(array[:, batch, group], one, 1.0) for array in (self.k, self.v))
            key_gradient, value_gradient = np.zeros((2, self.keys, self.head_size), np.float32)
            for head in self.heads_of(group):
                inverse = inverse_sum[batch, head]
                queries = _scaled_with_column(self.q[:, batch, head], scale, -maximum[batch, head])
                delta = np.einsum("sd,sd->s", dout[:, batch, head], out[:, batch, head])
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
        visible = self.setting.visible_keys(rows.stop, self.keys)
        weights = np.matmul(queries[rows], keys[:visible].T)
        limits = self.limits(batch, rows)
        _limit(weights, None if limits is None else limits + queries[rows, -1:])
        np.exp(weights, out=weights)
        kept = self.dropout(batch, head, rows, visible)
        dropped = weights if kept is None else weights * kept
        value_gradient[:visible] += np.matmul(dropped.T, upstream[rows, :-1])
        scores_gradient = self._scores_gradient(upstream[rows], values[:visible], kept)
        scores_gradient *= weights
        if limits is not None and self.setting.mask is not None:
            scores_gradient *= limits > 0
        key_gradient[:visible] += np.matmul(scores_gradient.T, queries[rows, :-1])
        return np.matmul(scores_gradient, keys[:visible, :-1]) * np.float32(self.setting.scale)

    def _scores_gradient(self, upstream: np.ndarray, values: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
        """(dout v^T kept - D) / l of a block, before the factor e."""
        if kept is None:
            return np.matmul(upstream, values.T)
        gradient = np.matmul(upstream[:, :-1], values[:, :-1].T)
        gradient *= kept
        gradient += upstream[:, -1:]
        return gradient


class _Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v, setting):
        heads = _Heads(as_float32(q), as_float32(k), as_float32(v), setting)
        out = np.empty(q.shape, np.float32)
        maximum, inverse_sum = np.empty((2, heads.batch, heads.heads, heads.queries), np.float32)
        heads.forward(out, maximum, inverse_sum)
        result = tensor_like(out.reshape(*out.shape[:2], -1), q)
        ctx.setting = setting
        ctx.save_for_backward(q, k, v, result, from_numpy(maximum), from_numpy(inverse_sum))
        return result

    @staticmethod
    def backward(ctx, dy):
        q, k, v, out, maximum, inverse_sum = ctx.saved_tensors
        heads = _Heads(as_float32(q), as_float32(k), as_float32(v), ctx.setting)
        gradients = tuple(np.empty(array.shape, np.float32) for array in (heads.q, heads.k, heads.v))
        dout, output = as_float32(dy).reshape(heads.q.shape), as_float32(out).reshape(heads.q.shape)
        heads.backward(dout, output, maximum.asnumpy(), inverse_sum.asnumpy(), gradients)
        return *(tensor_like(gradient, dy) for gradient in gradients), None


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, mask: Tensor | None,
    dropout_rate: float, dropout_key: Key, head_offset: int,
) -> Tensor:  # fmt: skip
    mask_array = None if mask is None else mask.asnumpy()
    return _Attention.apply(q, k, v, Setting(scale, causal, mask_array, dropout_rate, dropout_key, head_offset))
