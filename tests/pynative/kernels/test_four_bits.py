"""Products with weights rounded to MXFP4, 4 bits and a scale for each block, when they are multiplied."""

import mindspore
import numpy as np
import pytest

from parallel_core.numerics.block_formats import mxfp4
from pynative import kernels
from pynative.moe.experts import grouped_linear
from pynative.tensor_parallel.linear import linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.products import RoundedWeights, grouped_products
from tests.support.kernels import ONE_RANK, assert_close, normal, run_operator, tensor, upstream, values


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("axis", [0, 1])
def test_both_implementations_round_to_the_bit(axis):
    """`mxfp4` equals its definition for numbers of any size, powers of two, zeros, and blocks cut short by the weight's
    edge."""
    weight = normal(40, 70) * np.exp2(np.arange(70) - 35).astype(np.float32)
    weight[:, 3:5], weight[2] = 0.25, 0
    for dtype in (mindspore.float32, mindspore.bfloat16):
        given = tensor(weight, dtype)
        np.testing.assert_array_equal(values(kernels.mxfp4(given, axis)), mxfp4(values(given), axis))


@pytest.mark.usefixtures("implementation")
def test_gradients_of_weights_pass_as_if_they_were_not_rounded():
    """Output and input gradient are those of the rounded weights; the weights' gradient is any linear's."""
    x, weight, dy = normal(3, 2, 64), normal(48, 64, seed=1), upstream((3, 2, 48), 0)

    def product(x, weight):
        return linear_with_grad_accumulation_and_async_allreduce(x, weight, None, ONE_RANK, RoundedWeights())

    (y,), (dx, dw) = run_operator(product, (x, weight))
    rounded = mxfp4(weight)
    assert np.abs(rounded - weight).max() > 0.1
    assert_close(y, x @ rounded.T, 3e-6)
    assert_close(dx, dy @ rounded, 3e-6)
    assert_close(dw, np.einsum("sbo,sbi->oi", dy, x), 3e-6)


@pytest.mark.usefixtures("implementation")
def test_experts_share_a_scale_between_results():
    """In grouped products a block of one scale lies along the outputs of a weight (axis 0), as in MindSpeed's."""
    x, weights, dy = normal(5, 4), [normal(40, 4, seed=seed) for seed in (1, 2)], upstream((5, 40), 0)
    (y,), (dx, *dws) = run_operator(
        lambda x, *ws: grouped_linear(x, ws, (3, 2), grouped_products([RoundedWeights()] * 2)), (x, *weights)
    )
    parts = [slice(0, 3), slice(3, 5)]
    for part, weight, dw in zip(parts, weights, dws, strict=True):
        rounded = mxfp4(weight, axis=0)
        assert_close(y[part], x[part] @ rounded.T, 3e-6)
        assert_close(dx[part], dy[part] @ rounded, 3e-6)
        assert_close(dw, dy[part].T @ x[part], 3e-6)
