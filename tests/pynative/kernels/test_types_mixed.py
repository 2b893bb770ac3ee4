"""Operators whose tensors have several types, and what no tape records, in every type and stack."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter

from parallel_core.sharding import ShardSpec
from pynative import kernels
from pynative.kernels.block import Scores
from pynative.kernels.dropout import dropout_mask
from pynative.kernels.ops.attention import formed
from pynative.parameter import ParameterMeta
from pynative.tape.autograd import TapeGradients, backward, leaf, recording, take_gradient
from tests.support import kernels as support
from tests.support.kernel_stacks import ROUNDING, STACKS, selected
from tests.support.kernels import assert_close, normal, tensor, upstream, values

BFLOAT16, FLOAT16, FLOAT32 = mindspore.bfloat16, mindspore.float16, mindspore.float32
PLAIN = ["host", "ops", "ascend"]
"""The stacks without those that only switch operators of `ops`."""

X, KV = normal(4, 3, 6), normal(2, 4, 3, 2, 6)


MOVES = {
    "chunk": lambda t: kernels.chunk(tensor(X, t), 1, 1, 3),
    "take_columns": lambda t: kernels.take_columns(tensor(X, t), [range(1, 2), range(3, 6)]),
    "place_columns": lambda t: kernels.place_columns(tensor(X, t), [range(1, 3), range(4, 8)], 9),
    "pack_heads": lambda t: kernels.pack_heads([tensor(KV[0], t), tensor(KV[1], t)], 2, (2, 1)),
    "unpack_heads": lambda t: kernels.unpack_heads(tensor(normal(8, 3, 7), t), 2, ((2, 3), (4, 2)), (1, 1)),
    "sequence_first": lambda t: kernels.sequence_first(tensor(X[0], t)),
}


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("stack", PLAIN)
@pytest.mark.parametrize("name", MOVES)
def test_a_move_changes_no_value(name, stack, dtype):
    """Operators that only move values (MOVES) give in 16 bits what they give in float32, rounded, to the bit."""
    with selected(stack):
        moved, wide = (support.outputs_of(MOVES[name](each)) for each in (dtype, FLOAT32))
    for one, other in zip(moved, wide, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(values(one), values(other.astype(dtype)))


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("stack", PLAIN)
def test_copies_of_heads_add_up(stack, dtype):
    """`unpack_heads` adds the gradients of copied heads and rounds the sum once."""
    whole = normal(4, 3, 12)
    with selected(stack):
        (heads,) = kernels.unpack_heads(tensor(whole, dtype), 1, ((2, 3),), (2,))
    exact = values(tensor(whole, dtype)).astype(np.float64).reshape(4, 3, 2, 2, 3).sum(3)
    assert heads.dtype == dtype
    assert (np.abs(values(heads) - exact) <= ROUNDING[dtype] * np.abs(exact) + 1e-6).all()


@pytest.mark.parametrize("kept", ["nothing", "new", "added"])
@pytest.mark.parametrize(
    ("dtype", "memory"),
    [(FLOAT32, FLOAT32), (BFLOAT16, FLOAT32), (BFLOAT16, BFLOAT16), (FLOAT16, FLOAT32), (FLOAT16, FLOAT16)],
    ids=str,
)
@pytest.mark.parametrize("stack", PLAIN)
def test_weight_gradients_in_the_buffers_type(stack, dtype, memory, kept):
    """Weight gradients into memory of this type, in its place or added to it; without memory a new tensor of
    dy's type."""
    dy, x = tensor(normal(6, 2, 3, seed=1), dtype), tensor(normal(6, 2, 5), dtype)
    weight_out, bias_out = (tensor(normal(*shape, seed=9), memory) for shape in ((3, 5), (3,)))
    exact = np.einsum("sbo,sbi->oi", *(values(each).astype(np.float64) for each in (dy, x)))
    exact_bias = values(dy).astype(np.float64).sum((0, 1))
    if kept == "added":
        exact, exact_bias = exact + values(weight_out), exact_bias + values(bias_out)
    with selected(stack):
        outs = (None, None) if kept == "nothing" else (weight_out, bias_out)
        weight = kernels.linear_weight_gradient(dy, x, outs[0], kept == "added")
        bias = kernels.bias_gradient(dy, outs[1], kept == "added")
    assert kept == "nothing" or (weight is weight_out and bias is bias_out)
    assert weight.dtype == bias.dtype == (dtype if kept == "nothing" else memory)
    # An Ascend's product is rounded before it is added; nowhere else is there a second rounding.
    rounding = ROUNDING[dtype] * (2 if memory == dtype else 1) if stack == "ascend" else ROUNDING[weight.dtype]
    assert_close(values(weight), exact, rounding + 1e-6)
    assert_close(values(bias), exact_bias, rounding + 1e-6)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("stack", PLAIN)
def test_a_float32_residual_beside_a_narrow_branch(stack, dtype):
    """--fp32-residual-connection: a 16-bit branch added to a float32 residual gives float32, and each gradient has its
    tensor's type."""
    x, bias = leaf(tensor(normal(4, 2, 8), dtype)), leaf(tensor(normal(8), dtype))
    residual = leaf(tensor(normal(4, 2, 8, seed=3)))
    dy, kept = upstream((4, 2, 8), 0), dropout_mask((1,), (4, 2, 8), 0.25)
    with selected(stack):
        with recording():
            y = kernels.bias_dropout_add(x * 1.0, bias * 1.0, residual * 1.0, 0.25, (1,))
            backward([y], [tensor(dy)])
        dx, dbias, dresidual = (take_gradient(each) for each in (x, bias, residual))
    assert (y.dtype, dx.dtype, dbias.dtype, dresidual.dtype) == (FLOAT32, dtype, dtype, FLOAT32)
    rounding = ROUNDING[dtype]
    assert_close(values(y), values(residual) + (values(x) + values(bias)) * kept, 2 * rounding)
    assert_close(values(dx), dy * kept, rounding)
    assert_close(values(dbias), (dy * kept).sum((0, 1)), 2 * rounding)
    np.testing.assert_array_equal(values(dresidual), dy)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_norm_of_the_float32_residual(norm, stack):
    """A norm of float32 with bfloat16 weights: the result is float32."""
    x, vectors = normal(4, 2, 8), [tensor(normal(8, seed=i), BFLOAT16) for i in (1, 2)]
    given = vectors if norm == "layer_norm" else vectors[:1]
    with selected(stack):
        y = getattr(kernels, norm)(tensor(x), *given, 1e-5)
    assert y.dtype == FLOAT32
    assert_close(values(y), getattr(support, norm)(x.astype(np.float64), *map(values, given), 1e-5), 3e-6)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("stack", PLAIN)
def test_a_block_of_attention(stack, dtype):
    """One `attention_block` over all keys is attention, with values narrower than keys; its partial results and
    gradients are float32."""
    given = [tensor(normal(6, 2, *shape, seed=i), dtype) for i, shape in enumerate(((4, 16), (2, 16), (2, 8)))]
    scores = Scores(
        scale=0.25, causal=True, mask=None, dropout_rate=0.0, dropout_key=(), head_offset=0,
        query_positions=(range(6),), key_positions=(range(6),), seq_length=6,
    )  # fmt: skip
    dout = tensor(upstream((6, 2, 32), 0), dtype)
    with selected(stack):
        partial = kernels.attention_block(*given, scores)
        gradients = kernels.attention_block_gradient(*given, dout, partial, scores)
    assert {x.dtype for x in (*partial, *gradients)} == {FLOAT32}
    inputs = [values(x) for x in given]

    def reference(q, k, v):
        return support.attention(q, k, v, 0.25, np.triu(np.ones((6, 6), bool), 1))

    assert_close(values(partial.out), reference(*(x.astype(np.float64) for x in inputs)), 2 * ROUNDING[dtype] + 3e-6)
    for actual, wanted in zip(gradients, support.numerical_gradients(reference, inputs), strict=True):
        assert_close(values(actual), wanted, 2 * ROUNDING[dtype] + 2e-5)


@pytest.mark.parametrize("memory", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("stack", ["ops", "ascend"])
def test_what_the_tape_leaves_reaches_buffers_of_any_type(stack, memory):
    """Gradients of a norm's weight that come over the tape are added up over two micro-batches in main_grad, also of 16
    bits."""
    dtype = BFLOAT16 if memory == FLOAT32 else memory
    parameter = Parameter(tensor(normal(8), dtype))
    parameter.meta = ParameterMeta(ShardSpec(shape=(8,)), main_grad=tensor(np.full(8, 77, np.float32), memory))
    gradients, total = TapeGradients([parameter]), 0.0
    with selected(stack):
        for seed in (1, 2):
            x = tensor(normal(4, 2, 8, seed=seed), dtype)
            with recording():
                y = kernels.rms_norm(leaf(x), parameter, 1e-5)
                backward([y], [tensor(upstream(y.shape, 0), dtype)])
            gradients.collect()
            wide = values(x).astype(np.float64)
            total = total + (support.rms_norm(wide, 1.0, 1e-5) * upstream(y.shape, 0)).sum((0, 1))
    assert parameter.meta.main_grad.dtype == memory
    assert_close(values(parameter.meta.main_grad), total, 2 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_capped_scores_are_float32(dtype):
    """Attention with a soft cap: products are rounded to the queries' type, as on an Ascend, and the capped scores not
    once more."""
    products = tensor(8 * normal(1, 2, 4, 4), dtype)
    capped = formed(products, 3.0, None)
    assert capped.dtype == FLOAT32
    assert_close(values(capped), 3.0 * np.tanh(values(products) / 3.0), 1e-6)
