"""A block of attention's scores by an Ascend's flash attention. Not run on hardware: nobody here had one.

The kernel gives each row's maximum and sum of exponentials, which is what blocks are put together by, and its gradient
takes those of all blocks together. It takes 16-bit types; its masked scores are minus infinity. Float32, dropout,
explicit masks, chosen keys, the edges of windows and documents, caps, ALiBi, largest scores that are asked for, and
head numbers and sizes that it does not take go to composed operators.
"""

from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.auto_generate import FlashAttentionScore, FlashAttentionScoreGrad

from pynative.kernels.block import Partial, Scores
from pynative.kernels.ops import attention as composed
from pynative.kernels.ops.attention import added_last, causal_mask, merged, padded

FLOAT32 = mindspore.float32
LEFT_UP_CAUSAL, BAND, DENSE_MASK = 2, 4, 0
"""Values of the kernel's argument sparse_mode."""
COMPRESSED_MASK_SIZE = 2048
"""Side of the triangle that LEFT_UP_CAUSAL wants, whatever the sequence length."""
COPIES = 8
"""Number of equal copies that the kernel keeps of each row's statistics: [b, n, s, 8]."""


MAXIMUM_HEADS, MAXIMUM_HEAD_SIZE, HEAD_SIZE_MULTIPLE = 256, 512, 16


def fits(q: Tensor, v: Tensor) -> bool:
    """Whether flash attention takes queries [s, b, n, d] and values [s, b, g, e]: the queries are not float32, n is at
    most 256, and the larger of d and e, to which the kernel's heads are filled up, at most 512 and a multiple of
    16."""
    heads, size = q.shape[2], max(q.shape[3], v.shape[3])
    sizes_fit = heads <= MAXIMUM_HEADS and size <= MAXIMUM_HEAD_SIZE and size % HEAD_SIZE_MULTIPLE == 0
    return bool(q.dtype != FLOAT32) and bool(sizes_fit)


def with_width(x: Tensor, width: int) -> Tensor:
    """Heads [s, b, n, d] with zeros after their elements, [s, b, n, width], the same tensor if d is `width`: the
    kernel's keys and values are equally wide. Zeros in queries and keys leave scores as they are; zeros in values give
    zeros."""
    missing = width - x.shape[3]
    return ops.cat((x, ops.zeros((*x.shape[:3], missing), x.dtype)), -1) if missing else x


def _is_fused(q: Tensor, v: Tensor, scores: Scores) -> bool:
    is_masked = scores.mask is not None or scores.chosen is not None
    is_plain = not (scores.form.changes_scores or is_masked or scores.dropout_rate or scores.largest is not None)
    return fits(q, v) and is_plain and scores.sees_all


def _mask_of(scores: Scores) -> Tensor | None:
    return causal_mask(COMPRESSED_MASK_SIZE) if scores.causal else None


def _settings(heads: int, scores: Scores) -> dict[str, Any]:
    mode = LEFT_UP_CAUSAL if scores.causal else DENSE_MASK
    return {"head_num": heads, "scale_value": scores.scale, "input_layout": "SBH", "sparse_mode": mode}


def _rows(x: Tensor, width: int) -> Tensor:
    """Heads [s, b, n, d] as rows [s, b, n * width]."""
    wide = with_width(x, width)
    return wide.reshape(*wide.shape[:2], -1)


def _heads(rows: Tensor, like: Tensor) -> Tensor:
    """Rows [s, b, n * width] as heads [s, b, n, d] without the added zeros; n and d are those of `like`."""
    return rows.reshape(*rows.shape[:2], like.shape[2], -1)[..., : like.shape[3]]


def _inputs(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    """(queries, keys, values) of the block as rows of one width, as the kernel reads them."""
    width = max(q.shape[3], v.shape[3])
    chosen = (q[-scores.queries :], k[: scores.keys], v[: scores.keys])
    queries, keys, values = (_rows(x, width) for x in chosen)
    return queries, keys, values


def attention_block(q: Tensor, k: Tensor, v: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    """`kernels.attention_block` by aclnnFlashAttentionScore, where `fits` is true and the scores are of a kind that the
    kernel computes, else by the composed one of `ops`."""
    if not _is_fused(q, v, scores):
        return composed.attention_block(q, k, v, scores, partial)
    (_, batch, heads, _), width = q.shape, v.shape[3]
    kernel = FlashAttentionScore(**_settings(heads, scores))
    maximum, total, _, rows = kernel(*_inputs(q, k, v, scores), None, None, None, _mask_of(scores))
    out = rows.reshape(scores.queries, batch, heads, -1)[..., :width].reshape(scores.queries, batch, -1)
    own = Partial(ops.cast(out, FLOAT32), maximum[..., 0], 1 / total[..., 0])
    return own if partial is None else merged(partial, own, heads)


def attention_block_gradient(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`kernels.attention_block_gradient` by aclnnFlashAttentionScoreGrad, under the conditions of `attention_block`,
    else by the composed one of `ops`."""
    if not _is_fused(q, v, scores):
        return composed.attention_block_gradient(q, k, v, dout, partial, scores, dq)
    last, heads, inputs = slice(-scores.queries, None), q.shape[2], _inputs(q, k, v, scores)
    dout_rows, out_rows = (
        _rows(ops.cast(x[last], q.dtype).reshape(scores.queries, -1, heads, v.shape[3]), inputs[0].shape[2] // heads)
        for x in (dout, partial.out)
    )
    gradients = FlashAttentionScoreGrad(**_settings(heads, scores))(
        *inputs, dout_rows, None, None, None, _mask_of(scores),
        _copied(partial.maximum[..., last]), _copied(1 / partial.inverse_sum[..., last]), None, out_rows,
    )  # fmt: skip
    own_dq, dk, dv = (ops.cast(_heads(x, like), FLOAT32) for x, like in zip(gradients, (q, k, v), strict=False))
    return added_last(dq, own_dq), padded(dk, len(k)), padded(dv, len(v))


def _copied(statistic: Tensor) -> Tensor:
    return ops.tile(statistic.expand_dims(-1), (1, 1, 1, COPIES))
