"""The weights of chosen experts and the router's losses: published formulas, and gradients against finite differences
in float64."""

import numpy as np
import pytest

from parallel_core.moe.routing import (
    Noise,
    RoutingRule,
    choose,
    log_sum_exp,
    loss_gradient,
    normalized_scores,
    probabilities,
    probabilities_gradient,
    sample,
    sampled_gradient,
)

LOGITS = np.random.default_rng(3).normal(size=(7, 6))
RULES = {
    "softmax of the chosen": RoutingRule(topk=2),
    "softmax of all": RoutingRule(topk=2, pre_softmax=True),
    "softmax of all, normalized and scaled": RoutingRule(topk=3, pre_softmax=True, normalize=True, scale=2.5),
    "sigmoid of one": RoutingRule(topk=1, sigmoid=True),
    "sigmoid, normalized and scaled": RoutingRule(topk=3, sigmoid=True, normalize=True, scale=2.5),
    "groups": RoutingRule(topk=2, sigmoid=True, normalize=True, groups=3, group_topk=1),
}


def differences(function, x, step=1e-6):
    """The gradient of a function of an array by central differences."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            values.append(function(moved))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("name", RULES)
def test_gradients_of_an_expert_that_is_chosen_twice(name):
    """Gradients of both choices are added for a token that has the same expert twice."""
    rule = RULES[name]
    experts = np.full((7, rule.topk), 4)
    upstream = np.random.default_rng(4).normal(size=experts.shape)
    expected = differences(lambda x: (probabilities(x, experts, rule) * upstream).sum(), LOGITS)
    found = probabilities_gradient(LOGITS, experts, rule, upstream)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", RULES)
def test_gradients_of_weights(name):
    """`probabilities_gradient`, for each routing rule, equals the finite differences of a weighted sum of the weights
    with the choice held fixed."""
    rule = RULES[name]
    experts, upstream = choose(LOGITS, rule), np.random.default_rng(4).normal(size=(7, rule.topk))
    expected = differences(lambda x: (probabilities(x, experts, rule) * upstream).sum(), LOGITS)
    np.testing.assert_allclose(probabilities_gradient(LOGITS, experts, rule, upstream), expected, atol=1e-8)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_gradients_of_losses(sigmoid):
    """`loss_gradient` equals the finite differences of a weighted sum of normalized scores (balancing loss) plus
    squares of log-sum-exp (z-loss)."""
    rule, weights = RoutingRule(topk=2, sigmoid=sigmoid), np.random.default_rng(5).normal(size=LOGITS.shape)

    def loss(x):
        return (normalized_scores(x, rule) * weights).sum() + 0.3 * (log_sum_exp(x) ** 2).sum()

    np.testing.assert_allclose(loss_gradient(LOGITS, weights, 0.3, rule), differences(loss, LOGITS), atol=1e-8)


def test_weights_as_published():
    """Weights by hand: a softmax over the chosen (Mixtral); over all, unnormalized; sigmoids, normalized and scaled
    (DeepSeek-V3)."""
    row, experts = np.log(np.array([[1.0, 2.0, 3.0, 4.0]])), np.array([[3, 2]], np.int32)
    assert np.allclose(probabilities(row, experts, RoutingRule(topk=2)), [[4 / 7, 3 / 7]])
    assert np.allclose(probabilities(row, experts, RoutingRule(topk=2, pre_softmax=True)), [[0.4, 0.3]])
    sigmoids = np.array([4 / 5, 3 / 4])
    rule = RoutingRule(topk=2, sigmoid=True, normalize=True, scale=2.5)
    assert np.allclose(probabilities(row, experts, rule), [2.5 * sigmoids / sigmoids.sum()])


@pytest.mark.parametrize("turn", [0, 1])
def test_sampling_estimates_the_gradient_of_the_multiplier(turn):
    """SparseMixer's sampled routing: the weight is the whole multiplier where the best expert was drawn and in a
    quarter of the other draws, a third of it in the rest; the gradient is the multiplier's softmax; without noise the
    two best experts are chosen."""
    generator = np.random.default_rng(6)
    logits = generator.normal(size=(4000, 4)) * 0.1 + 2.0
    noise = Noise(generator.random((2, 4000, 4)), generator.random((2, 4000)))
    draw = sample(logits, 0.2, noise)[turn]
    is_best = draw.experts == draw.gates.argmax(axis=1)
    share = draw.weights / draw.multiplier
    assert np.allclose(share[is_best], 1.0) and 0.2 < (share[~is_best] > 0.5).mean() < 0.3
    rows = np.arange(4000)
    finite = np.where(draw.gates > 0, logits, -np.inf)
    softened = np.exp(finite) / np.exp(finite).sum(axis=1, keepdims=True)
    assert np.allclose(draw.multiplier, softened[rows, draw.experts])
    gradient = sampled_gradient(draw, np.ones(4000))
    assert np.allclose(gradient[rows, draw.experts], draw.multiplier * (1 - draw.multiplier))
    best_two = np.argsort(-logits, axis=1)[:, turn]
    assert np.array_equal(sample(logits, 0.2, None)[turn].experts, best_two)
