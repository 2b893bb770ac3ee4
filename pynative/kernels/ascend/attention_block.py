"""A block of the ring's scores by an Ascend's flash attention. Not run on hardware: nobody here had one.

The kernel gives each row's maximum and sum of exponentials, which is what blocks are put together by, and its gradient
takes those of all blocks together. It computes in 16 bits with masked scores of minus infinity: float32, dropout,
explicit masks and head sizes that it does not take go to composed operators, so that numbers are those of every other
device.
"""

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.auto_generate import FlashAttentionScore, FlashAttentionScoreGrad

from pynative.kernels.block import Partial, Scores
from pynative.kernels.ops import attention as composed
from pynative.kernels.ops.attention import added_last, causal_mask, merged, padded

FLOAT32 = mindspore.float32
LEFT_UP_CAUSAL, DENSE_MASK = 2, 0
"""The kernel's sparse_mode."""
COMPRESSED_MASK_SIZE = 2048
"""Side of the triangle that LEFT_UP_CAUSAL wants, whatever the sequence length."""
COPIES = 8
"""The kernel keeps each row's number this many times: [b, n, s, 8]."""


MAXIMUM_HEADS, MAXIMUM_HEAD_SIZE, HEAD_SIZE_MULTIPLE = 256, 512, 16


def fits(q: Tensor) -> bool:
    """Whether flash attention takes queries [s, b, n, d]: 16-bit types, and MindSpore's limits for n and d."""
    heads, size = q.shape[2:]
    sizes_fit = heads <= MAXIMUM_HEADS and size <= MAXIMUM_HEAD_SIZE and size % HEAD_SIZE_MULTIPLE == 0
    return q.dtype != FLOAT32 and sizes_fit


def _is_fused(q: Tensor, scores: Scores) -> bool:
    return fits(q) and not scores.dropout_rate and scores.mask is None


def _mask_of(scores: Scores) -> Tensor | None:
    return causal_mask(COMPRESSED_MASK_SIZE) if scores.causal else None


def _settings(heads: int, scores: Scores) -> dict:
    mode = LEFT_UP_CAUSAL if scores.causal else DENSE_MASK
    return {"head_num": heads, "scale_value": scores.scale, "input_layout": "SBH", "sparse_mode": mode}


def _rows(q: Tensor, kv: Tensor, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """The block's queries, keys and values, each [s, b, n * d]."""
    chosen = (q[-scores.queries :], kv[0, : scores.keys], kv[1, : scores.keys])
    queries, keys, values = (x.reshape(*x.shape[:2], -1) for x in chosen)
    return queries, keys, values


def attention_block(q: Tensor, kv: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    """aclnnFlashAttentionScore."""
    if not _is_fused(q, scores):
        return composed.attention_block(q, kv, scores, partial)
    heads = q.shape[2]
    kernel = FlashAttentionScore(**_settings(heads, scores))
    maximum, total, _, out = kernel(*_rows(q, kv, scores), None, None, None, _mask_of(scores))
    own = Partial(ops.cast(out, FLOAT32), maximum[..., 0], 1 / total[..., 0])
    return own if partial is None else merged(partial, own, heads)


def attention_block_gradient(
    q: Tensor, kv: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """aclnnFlashAttentionScoreGrad."""
    if not _is_fused(q, scores):
        return composed.attention_block_gradient(q, kv, dout, partial, scores, dq)
    last = slice(-scores.queries, None)
    own_dq, dk, dv, _ = FlashAttentionScoreGrad(**_settings(q.shape[2], scores))(
        *_rows(q, kv, scores), dout[last], None, None, None, _mask_of(scores),
        _copied(partial.maximum[..., last]), _copied(1 / partial.inverse_sum[..., last]), None,
        ops.cast(partial.out[last], q.dtype),
    )  # fmt: skip
    shape = (scores.keys, *kv.shape[2:])
    dkv = ops.stack([ops.cast(x, FLOAT32).reshape(shape) for x in (dk, dv)])
    own = ops.cast(own_dq, FLOAT32).reshape(scores.queries, *q.shape[1:])
    return added_last(dq, own), padded(dkv, kv.shape[1])


def _copied(statistic: Tensor) -> Tensor:
    return ops.tile(statistic.expand_dims(-1), (1, 1, 1, COPIES))
