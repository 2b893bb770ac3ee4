"""What an Ascend's kernels are handed and what is made of it, with stand-ins that do what their documentation says.

The kernels themselves are not here: nothing of this shows that they compute it.
"""

from dataclasses import replace

import mindspore
import numpy as np
import pytest
from mindspore import ops

from parallel_core.context import ContextLayout, Ranges, cut, ring_block
from pynative import kernels
from pynative.kernels.ascend import attention_block as fused_block
from pynative.kernels.block import Partial, Scores
from pynative.kernels.ops import attention as composed
from tests.support.kernels import assert_close, normal, tensor, values

HEADS, GROUPS, SIZE = 4, 2, 8


class StandIn:
    """Rows [s, b, n * d], the number of heads, a scale and a mode: all that either kernel is told."""

    def __init__(self, head_num, scale_value, input_layout, sparse_mode):
        assert head_num == HEADS and input_layout == "SBH"
        self.scale, self.causal = scale_value, sparse_mode == fused_block.LEFT_UP_CAUSAL

    def arguments(self, query, key, value, mask):
        assert (mask is not None) == self.causal
        q, k, v = (x.astype(mindspore.float32).reshape(*x.shape[:2], -1, SIZE) for x in (query, key, value))
        scores = replace(block_of((range(len(q)),), (range(len(k)),), self.causal), scale=self.scale)
        return q, ops.stack((k, v)), scores


class Forward(StandIn):
    def __call__(self, query, key, value, real_shift, drop_mask, padding_mask, attn_mask):
        q, kv, scores = self.arguments(query, key, value, attn_mask)
        out, maximum, inverse_sum = composed.attention_block(q, kv, scores, None)
        eight = (ops.tile(x.expand_dims(-1), (1, 1, 1, 8)) for x in (maximum, 1 / inverse_sum))
        return *eight, None, out.astype(query.dtype)


class Gradient(StandIn):
    def __call__(self, query, key, value, dy, shift, drop, padding, mask, maximum, total, softmax_in, attention_in):
        q, kv, scores = self.arguments(query, key, value, mask)
        assert maximum.shape == total.shape == (q.shape[1], HEADS, len(q), 8)
        partial = Partial(attention_in.astype(mindspore.float32), maximum[..., 0], 1 / total[..., 0])
        dq, dkv = composed.attention_block_gradient(q, kv, dy.astype(mindspore.float32), partial, scores, None)
        rows = (x.reshape(*x.shape[:2], -1).astype(query.dtype) for x in (dq, dkv[0], dkv[1]))
        return *rows, None


def blocks(place: int) -> list[Scores]:
    """The blocks of a ring of two, in the order in which member `place` meets them."""
    layout = ContextLayout(ring=2)
    own, other = (layout.ring_positions(16, member) for member in (place, 1 - place))
    rectangle = ring_block(place, 1 - place)
    first, keys = 8 - 4 * rectangle.query_chunks, 4 * rectangle.key_chunks
    return [block_of(own, own, True), block_of(cut(own, first, 8), cut(other, 0, keys), False)]


def block_of(queries: Ranges, keys: Ranges, causal: bool) -> Scores:
    return Scores(
        scale=0.3, causal=causal, mask=None, dropout_rate=0.0, dropout_key=(), head_offset=0,
        query_positions=queries, key_positions=keys, seq_length=16,
    )  # fmt: skip


def through(module, q, kvs, dout, scores) -> list[np.ndarray]:
    """Output, statistics and gradients of a member's two blocks."""
    partial = dq = None
    for kv, block in zip(kvs, scores, strict=True):
        partial = module.attention_block(q, kv, block, partial)
    gradients = []
    for kv, block in zip(kvs, scores, strict=True):
        dq, dkv = module.attention_block_gradient(q, kv, dout, partial, block, dq)
        gradients.append(dkv)
    return [values(x) for x in (*partial, dq, *gradients)]


@pytest.mark.parametrize("place", [0, 1])
def test_blocks_through_the_kernels_are_the_composed_ones(place, monkeypatch):
    """To the rounding of 16 bits, at the causal block and at either half."""
    kernels.use("ops")
    monkeypatch.setattr(fused_block, "FlashAttentionScore", Forward)
    monkeypatch.setattr(fused_block, "FlashAttentionScoreGrad", Gradient)
    half = mindspore.float16
    q, dout = tensor(normal(8, 2, HEADS, SIZE), half), tensor(normal(8, 2, HEADS * SIZE, seed=1), half)
    kvs = [tensor(normal(2, 8, 2, GROUPS, SIZE, seed=seed), half) for seed in (2, 3)]
    ours, expected = (through(module, q, kvs, dout, blocks(place)) for module in (fused_block, composed))
    for one, other in zip(ours, expected, strict=True):
        assert_close(one, other, 2.0**-8)
