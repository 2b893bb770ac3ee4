"""Scaled dot-product attention on the host: the operators over `forward` and `backward`."""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.block import AttentionRule, Partial, Scores
from pynative.kernels.host.attention.backward import attention_backward
from pynative.kernels.host.attention.forward import attention_forward
from pynative.kernels.host.attention.heads import Heads
from pynative.memory.arrays import array_of, writable
from pynative.tape.autograd import Function


def _forward(heads: Heads, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    """(out [s, b, n, e] of this type, maximum and inverse sum [b, n, s] float32) of attention over the heads' block."""
    length, batch, count, _ = heads.query_shape
    out = np.empty(heads.out_shape, dtype)
    maximum, inverse_sum = np.empty((2, batch, count, length), np.float32)
    if heads.scores.largest is None:
        attention_forward(heads, out, maximum, inverse_sum)
        return out, maximum, inverse_sum
    largest = np.full((batch, count, length), -np.inf, np.float32)
    attention_forward(heads, out, maximum, inverse_sum, largest)
    heads.scores.report(from_numpy(largest.max(axis=(0, 2))))
    return out, maximum, inverse_sum


class _Attention(Function):
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
        q_array = array_of(q)
        out, maximum, inverse_sum = _forward(Heads(q_array, array_of(k), array_of(v), scores), q_array.dtype)
        result = from_numpy(out.reshape(*out.shape[:2], -1))
        ctx.scores = scores
        ctx.save_for_backward(q, k, v, result, from_numpy(maximum), from_numpy(inverse_sum))
        return result

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, maximum, inverse_sum = ctx.saved_tensors
        heads, dout = Heads(array_of(q), array_of(k), array_of(v), ctx.scores), array_of(dy)
        dq, dk, dv = (np.empty(x.shape, dout.dtype) for x in (q, k, v))
        dout_heads, out_heads = (x.reshape(heads.out_shape) for x in (dout, array_of(out)))
        attention_backward(heads, dout_heads, out_heads, array_of(maximum), array_of(inverse_sum), (dq, dk, dv))
        return from_numpy(dq), from_numpy(dk), from_numpy(dv), None


def attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    return _Attention.apply(q, k, v, Scores.whole(rule, q, k))


def _heads_of(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Heads:
    """The queries, keys and values that the block `scores` has, of q, k, v of the sequence."""
    keys, values = (array_of(x)[: scores.keys] for x in (k, v))
    return Heads(array_of(q)[-scores.queries :], keys, values, scores)


def attention_block(q: Tensor, k: Tensor, v: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    if scores.sees_nothing and partial is not None:
        return partial
    out, maximum, inverse_sum = _forward(_heads_of(q, k, v, scores), np.dtype(np.float32))
    if partial is None:
        return Partial(from_numpy(out.reshape(*out.shape[:2], -1)), from_numpy(maximum), from_numpy(inverse_sum))
    _merge(partial, out, maximum, inverse_sum)
    return partial


def _merge(partial: Partial, out: Array, maximum: Array, inverse_sum: Array) -> None:
    """Put a block's result together with that of its queries, the last ones of `partial`, in place; `out` is
    overwritten."""
    queries = maximum.shape[-1]
    old_out = writable(partial.out)[-queries:].reshape(out.shape)
    old_maximum, old_inverse = (writable(x)[..., -queries:] for x in (partial.maximum, partial.inverse_sum))
    highest = np.maximum(old_maximum, maximum)
    old_weight, weight = np.exp(old_maximum - highest) / old_inverse, np.exp(maximum - highest) / inverse_sum
    inverse = 1 / (old_weight + weight)
    old_out *= (old_weight * inverse).transpose(2, 0, 1)[..., None]
    out *= (weight * inverse).transpose(2, 0, 1)[..., None]
    old_out += out
    old_maximum[...], old_inverse[...] = highest, inverse


def attention_block_gradient(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    heads, last = _heads_of(q, k, v, scores), slice(-scores.queries, None)
    own_dq, dk, dv = np.empty(heads.query_shape, np.float32), *(np.zeros(x.shape, np.float32) for x in (k, v))
    dout_heads, out_heads = (array_of(x)[last].reshape(heads.out_shape) for x in (dout, partial.out))
    attention_backward(
        heads, dout_heads, out_heads, array_of(partial.maximum)[..., last], array_of(partial.inverse_sum)[..., last],
        (own_dq, dk[: scores.keys], dv[: scores.keys]),
    )  # fmt: skip
    if dq is None:
        return from_numpy(own_dq), from_numpy(dk), from_numpy(dv)
    writable(dq)[last] += own_dq
    return dq, from_numpy(dk), from_numpy(dv)
