"""A router's operators: `ops` agrees with `host`, whose are numpy's, forward and backward."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from parallel_core.moe import routing
from parallel_core.moe.routing import Noise, RoutingRule
from pynative import kernels
from tests.support.kernels import assert_close, normal, run_operator, tensor, upstream

LOGITS = (np.argsort(normal(50, 3, 12, seed=8), axis=-1) * 0.3 - 1.5).astype(np.float32)
"""[s, b, experts]; in a row all are different, in 16 bits, too."""
RULES = {
    "softmax": RoutingRule(topk=2),
    "softmax of all": RoutingRule(topk=3, pre_softmax=True, normalize=True, scale=2.5),
    "groups by their best": RoutingRule(topk=4, pre_softmax=True, groups=3, group_topk=2, group_score_topk=1),
    "groups of sigmoids": RoutingRule(topk=4, sigmoid=True, normalize=True, scale=2.5, groups=3, group_topk=2),
}
BIAS = np.linspace(-0.3, 0.3, 12, dtype=np.float32)


def both(case):
    """Yield results and gradients of (operator, inputs) under `host`, then under `ops`."""
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        yield [array for arrays in run_operator(*case) for array in arrays]


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16])
@pytest.mark.parametrize("name", RULES)
def test_choice_and_weights(name, dtype):
    """Chosen experts are the same in every row; weights are float32 also for 16-bit logits, whose gradients have their
    type."""
    rule, logits = RULES[name], Tensor(LOGITS).astype(dtype)
    rows = logits.astype(ms.float32).asnumpy().reshape(-1, 12)
    experts = routing.choose(rows, rule, BIAS if rule.sigmoid else None)
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        chosen = kernels.choose_experts(logits, rule, Tensor(BIAS) if rule.sigmoid else None)
        assert chosen.dtype == ms.int32 and np.array_equal(chosen.asnumpy(), experts)

    def weigh(x):
        return kernels.routing_probabilities(kernels.cast(x, dtype), Tensor(experts), rule)

    ours, theirs = both((weigh, (LOGITS,)))
    assert_close(ours[0], routing.probabilities(rows, experts, rule), 1e-6)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, 1e-5 if dtype == ms.float32 else 1e-2)


@pytest.mark.parametrize("name", RULES)
def test_of_equal_scores_the_first_are_chosen(name):
    """Rows full of ties, within groups of experts and between them: both choose those with the lowest numbers."""
    logits = np.random.default_rng(13).integers(0, 3, (40, 2, 12)).astype(np.float32)
    expected = routing.choose(logits.reshape(-1, 12), RULES[name])
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        np.testing.assert_array_equal(kernels.choose_experts(Tensor(logits), RULES[name]).asnumpy(), expected)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_losses(sigmoid):
    """`router_statistics` agree, and `with_router_losses` leaves the logits and adds the losses' gradient to theirs."""
    rule, weights = RoutingRule(topk=2, sigmoid=sigmoid), normal(3, 12, seed=9)
    statistics = []
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        statistics.append([x.asnumpy() for x in kernels.router_statistics(Tensor(LOGITS), rule)])
    for one, other in zip(*statistics, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    ours, theirs = both((lambda x: kernels.with_router_losses(x, tensor(weights), 0.1, rule), (LOGITS,)))
    np.testing.assert_array_equal(ours[0], LOGITS)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, 1e-5)
    plain = run_operator(lambda x: kernels.with_router_losses(x, None, 0.0, rule), (LOGITS,))[1][0]
    added = routing.loss_gradient(LOGITS.reshape(-1, 12), np.tile(weights, (50, 1)), 0.1, rule)
    assert_close(ours[1] - plain, added.reshape(LOGITS.shape), 1e-5)


@pytest.mark.parametrize(
    "capacity", [20, np.array([20, 40, 5, 0, *[30] * 8]), np.zeros(12, int)], ids=["one", "each its own", "none"]
)
@pytest.mark.parametrize("by_position", [False, True])
def test_dropping(by_position, capacity):
    """`drop_over_capacity` keeps the same choices under both where probabilities are equal, or would be if 1 were added
    to them."""
    rows = LOGITS.reshape(-1, 12)
    rule = RULES["softmax of all"]
    experts = routing.choose(rows, rule)
    probs = (0.1 + 1e-8 * np.random.default_rng(12).integers(0, 9, experts.shape)).astype(np.float32)
    kept = routing.kept_within(capacity, probs, experts, by_position)
    assert 0 < (~kept).sum() < kept.size / 2 or not np.any(capacity)

    def drop(x):
        return kernels.drop_over_capacity(x, Tensor(experts), capacity, by_position)[0]

    for found in both((drop, (probs,))):
        np.testing.assert_array_equal(found[0], probs * kept)
        np.testing.assert_array_equal(found[1], upstream(probs.shape, 0) * kept)
        left = kernels.drop_over_capacity(Tensor(probs), Tensor(experts), capacity, by_position)[1].asnumpy()
        np.testing.assert_array_equal(left, np.where(kept, experts, -1))


def test_sampling_and_sinkhorn():
    """`sample_experts` from the same random numbers, and the choice balanced by Sinkhorn iterations."""
    generator, tokens = np.random.default_rng(10), LOGITS.shape[0] * LOGITS.shape[1]
    noise = Noise(
        generator.random((2, tokens, 12)).astype(np.float32), generator.random((2, tokens)).astype(np.float32)
    )
    ours, theirs = both((lambda x: kernels.sample_experts(x, 0.1, noise)[0], (LOGITS,)))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, 1e-5)
    chosen, balanced = [], []
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        chosen.append(kernels.sample_experts(Tensor(LOGITS), 0.1, noise)[1].asnumpy())
        balanced.append(kernels.choose_experts(Tensor(LOGITS), RULES["softmax"], balanced=True).asnumpy())
    np.testing.assert_array_equal(*chosen)
    np.testing.assert_array_equal(*balanced)


@pytest.mark.parametrize("groups", [None, 4])
def test_loads(groups):
    """`load_of_experts` by `host` and `ops` equals `load_of_sequences`, by expert and by group; -1 counts nowhere."""
    experts = np.random.default_rng(11).integers(-1, 12, (30, 2)).astype(np.int32)
    expected = routing.load_of_sequences(experts, 3, 12, groups)
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        np.testing.assert_array_equal(kernels.load_of_experts(Tensor(experts), 3, 12, groups).asnumpy(), expected)
