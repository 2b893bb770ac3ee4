"""Scaled dot-product attention of MindSpore operators, with all the scores at once."""

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy, ops

from pynative.kernels.dropout import Key, attention_dropout_mask

MASKED_SCORE = -10000.0

_product = ops.BatchMatMul()
_product_with_transposed = ops.BatchMatMul(transpose_b=True)


def causal_mask(size: int) -> Tensor:
    """Bool [size, size], True above the diagonal."""
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


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, mask: Tensor | None,
    dropout_rate: float, dropout_key: Key, head_offset: int,
) -> Tensor:  # fmt: skip
    queries, batch, heads, head_size = q.shape
    keys, _, groups, _ = k.shape
    shape, by_group = (batch, heads, queries, keys), (batch, groups, -1, head_size)
    # The query heads of a group stand below one another, so that k and v need no copies of them.
    q_bgsd, k_bgsd, v_bgsd = (x.transpose(1, 2, 0, 3).reshape(by_group) for x in (q * scale, k, v))
    scores = _product_with_transposed(q_bgsd, k_bgsd).reshape(shape)
    if causal and mask is None:
        mask = causal_mask(queries)
    if mask is not None:
        scores = ops.masked_fill(scores, mask, MASKED_SCORE)
    probabilities = ops.softmax(scores.astype(mindspore.float32), -1)
    if dropout_rate:
        probabilities = probabilities * dropout_masks(dropout_key, dropout_rate, head_offset, shape)
    out = _product(probabilities.astype(v.dtype).reshape(batch, groups, -1, keys), v_bgsd)
    return out.reshape(batch, heads, queries, head_size).transpose(2, 0, 1, 3).reshape(queries, batch, -1)
