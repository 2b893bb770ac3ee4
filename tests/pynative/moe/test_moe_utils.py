"""Megatron's functions of routers, under its names: values computed by hand, and gradients."""

import numpy as np
import pytest
from mindspore import Tensor

from pynative.moe.moe_utils import (
    get_capacity,
    switch_load_balancing_loss_func,
    topk_softmax_with_capacity,
    z_loss_func,
)
from pynative.startup import device
from pynative.tape import autograd

LOGITS = np.log(np.array([[1, 2, 5], [4, 1, 3], [1, 7, 2], [6, 3, 1]], np.float32))


@pytest.fixture(autouse=True)
def _on_a_cpu():
    device.initialize("CPU", "host", 1, 1)


def gradient(function):
    """The gradient of a scalar function at LOGITS."""
    with autograd.recording():
        x = autograd.leaf(Tensor(LOGITS))
        autograd.backward([function(x)], [Tensor(np.float32(1.0))])
    return autograd.take_gradient(x).asnumpy()


def test_losses():
    """switch_load_balancing_loss_func for counts (2, 1, 1) of four tokens; z_loss_func, whose gradient is 2 log(sum)
    softmax / T, for sums of exponentials 8, 8, 10, 10."""
    probs = Tensor(np.full((4, 3), 1 / 3, np.float32))
    loss = switch_load_balancing_loss_func(probs, Tensor(np.array([2, 1, 1], np.int32)), 4, 1, 3, 0.5)
    assert np.isclose(float(loss.asnumpy()), 0.5 * 3 * 4 / 3 * 4 / 16)
    sums = np.array([8.0, 8.0, 10.0, 10.0])
    assert np.isclose(float(z_loss_func(Tensor(LOGITS), 0.1).asnumpy()), 0.1 * np.mean(np.log(sums) ** 2))
    expected = 0.1 * 2 * np.log(sums)[:, None] * np.exp(LOGITS) / sums[:, None] / 4
    np.testing.assert_allclose(gradient(lambda x: z_loss_func(x, 0.1)), expected, rtol=1e-5)


def test_routing():
    """topk_softmax_with_capacity, one expert a token: of two tokens for expert 0 its capacity of one leaves the
    likelier; by position, the first."""
    assert get_capacity(4, 3, 0.75) == 1
    probs, routed, load = topk_softmax_with_capacity(Tensor(LOGITS), 1, 0.75, use_pre_softmax=True)
    assert load.asnumpy().tolist() == [2, 1, 1]
    expected = np.array([[0, 0, 5 / 8], [0, 0, 0], [0, 0.7, 0], [0.6, 0, 0]])
    np.testing.assert_allclose(probs.asnumpy(), expected, rtol=1e-6)
    assert np.array_equal(routed.asnumpy(), expected > 0)
    first = topk_softmax_with_capacity(Tensor(LOGITS), 1, 0.75, drop_policy="position", use_pre_softmax=True)[0]
    assert first.asnumpy()[1, 0] == 0.5 and first.asnumpy()[3, 0] == 0


def test_padded_routing():
    """pad_to_capacity gives each expert two tokens, those that did not choose it with probability 0."""
    probs, routed, _ = topk_softmax_with_capacity(Tensor(LOGITS), 1, 1.5, pad_to_capacity=True, use_pre_softmax=True)
    assert routed.asnumpy().sum(axis=0).tolist() == [2, 2, 2]
    assert not probs.asnumpy()[~routed.asnumpy()].any() and (probs.asnumpy() > 0).sum() == 4


def test_a_sigmoids_weights_have_a_gradient():
    """Sigmoid scores of two experts, normalized, sum to the scaling factor, so the sum's gradient is zero; that of one
    expert's weights is not."""

    def total(x):
        return topk_softmax_with_capacity(x, 2, scaling_factor=2.5, score_function="sigmoid")[0].sum()

    np.testing.assert_allclose(gradient(total), 0.0, atol=1e-6)
    only_first = gradient(lambda x: topk_softmax_with_capacity(x, 2, score_function="sigmoid")[0][:, 0].sum())
    assert np.abs(only_first).max() > 0.01


def test_unknown_policies_are_refused():
    """`topk_softmax_with_capacity` refuses an unknown drop_policy with a ValueError that names the argument."""
    with pytest.raises(ValueError, match="drop_policy"):
        topk_softmax_with_capacity(Tensor(LOGITS), 1, 1.0, drop_policy="random")
