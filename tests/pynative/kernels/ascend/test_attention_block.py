"""`attention_block`, one block of ring attention's scores, by an Ascend's flash attention (doubles of its kernels):
forward and backward."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from parallel_core.context import ContextLayout, Ranges, cut, ring_block
from pynative.kernels.ascend import attention_block as fused_block
from pynative.kernels.block import Scores
from pynative.kernels.ops import attention as composed
from tests.support.ascend.stack import ascend_operators
from tests.support.kernels import assert_close, normal, tensor, values

HEADS, GROUPS, SIZE = 4, 2, 16

VALUE_SIZES = 8, 32
"""Width of the values, by the ring member's place: narrower and wider than the keys."""


def inputs(kind: mindspore.dtype, value_size: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:
    """(q, the k and v of each of two ring members, gradient of the output) of this type."""
    kvs = [
        tuple(tensor(normal(8, 2, GROUPS, width, seed=seed + width), kind) for width in (SIZE, value_size))
        for seed in (2, 3)
    ]
    return tensor(normal(8, 2, HEADS, SIZE), kind), kvs, tensor(normal(8, 2, HEADS * value_size, seed=1), kind)


def blocks(place: int) -> list[Scores]:
    """Scores of ring member `place` with its own keys, then with the other member's."""
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
    """Output, softmax statistics and gradients of a ring member's two blocks, computed by this module."""
    partial = dq = None
    for kv, block in zip(kvs, scores, strict=True):
        partial = module.attention_block(q, *kv, block, partial)
    gradients = []
    for kv, block in zip(kvs, scores, strict=True):
        dq, *of_keys = module.attention_block_gradient(q, *kv, dout, partial, block, dq)
        gradients += of_keys
    return [values(x) for x in (*partial, dq, *gradients)]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2.0**-8), ("bfloat16", 2.0**-5)])
def test_blocks_through_the_kernels_are_the_composed_ones(dtype, tolerance, place):
    """Causal blocks and blocks of half the sequence, at both places of a ring of two: equal to the composed operators
    but for the rounding of 16 bits."""
    q, kvs, dout = inputs(getattr(mindspore, dtype), VALUE_SIZES[place])
    expected = through(composed, q, kvs, dout, blocks(place))
    with ascend_operators():
        fused = through(fused_block, q, kvs, dout, blocks(place))
    for one, other in zip(fused, expected, strict=True):
        assert_close(one, other, tolerance)


def test_float32_blocks_are_composed():
    """Flash attention takes 16-bit types only, so float32 blocks run the composed operators: equal to the bit."""
    q, kvs, dout = inputs(mindspore.float32, SIZE)
    with ascend_operators():
        fused = through(fused_block, q, kvs, dout, blocks(0))
    for one, other in zip(fused, through(composed, q, kvs, dout, blocks(0)), strict=True):
        assert (one == other).all()
