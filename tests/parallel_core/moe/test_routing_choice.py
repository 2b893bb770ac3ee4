"""The choice of experts for each token (top-k, bias, groups, sinkhorn), loads, and the choices within a capacity."""

import numpy as np
import pytest

from parallel_core.moe.routing import (
    RoutingRule,
    Tokens,
    balance_weights,
    best,
    beyond_capacity,
    choose,
    get_capacity,
    group_weights,
    kept_within,
    load_of_sequences,
    sinkhorn,
)


def test_the_best_are_the_largest_first_and_of_equal_ones_the_first():
    """`best(values, k)` gives the places of the k largest of each row, largest first, of equal ones the first."""
    values = np.random.default_rng(0).integers(0, 5, (200, 9)).astype(np.float32)
    expected = np.argsort(-values, axis=1, kind="stable")[:, :4]
    assert np.array_equal(best(values, 4), expected)


def test_the_bias_moves_the_choice_alone():
    """The expert bias is added to the sigmoid scores by which experts are chosen, as in DeepSeek-V3."""
    logits = np.array([[2.0, 1.0, 0.0]])
    rule = RoutingRule(topk=1, sigmoid=True)
    assert choose(logits, rule).item() == 0
    assert choose(logits, rule, np.array([0.0, 0.0, 0.4])).item() == 2


def test_groups_are_as_good_as_the_sum_of_their_best():
    """Experts are chosen from the group whose best two sum to most, although the single best expert is in another
    group; `group_score_topk=1` counts the best alone."""
    logits = np.array([[4.0, -9.0, 2.5, 2.5, 0.0, 1.0]])
    assert choose(logits, RoutingRule(topk=2, groups=3, group_topk=1)).tolist() == [[2, 3]]
    assert choose(logits, RoutingRule(topk=2, groups=3, group_topk=2)).tolist() == [[0, 2]]
    assert choose(logits, RoutingRule(topk=2, groups=3, group_topk=1, group_score_topk=1)).tolist() == [[0, 1]]


def test_sinkhorn_gives_each_expert_as_much():
    """Sinkhorn's matrix sums to 1/4 for each of 4 experts and 1/64 for each of 64 tokens, within 1%."""
    balanced = sinkhorn(np.random.default_rng(1).normal(size=(64, 4)))
    assert np.allclose(balanced.sum(axis=0), 1 / 4, rtol=1e-2) and np.allclose(balanced.sum(axis=1), 1 / 64, rtol=1e-2)


@pytest.mark.parametrize("groups", [None, 3])
def test_loads_are_counted_by_sequence(groups):
    """`load_of_sequences` counts, for each sequence, choices by expert, or tokens by group of experts; equal to
    counting token after token, dropped choices (-1) left out."""
    experts = np.random.default_rng(2).integers(-1, 6, (10, 3)).astype(np.int32)
    expected = np.zeros((2, groups or 6))
    for token, chosen in enumerate(experts):
        places = [e for e in chosen if e >= 0] if groups is None else {e // 2 for e in chosen if e >= 0}
        for place in places:
            expected[token % 2, place] += 1
    assert np.array_equal(load_of_sequences(experts, 2, 6, groups), expected)


def test_even_loads_make_a_balancing_loss_of_one():
    """The load-balancing loss is 1 for even loads, as in Switch Transformers (equation 4), and so is that of groups
    (devices), as in DeepSeek-V2."""
    scores_summed = np.full((1, 8), 40 / 8)
    weights = balance_weights(np.full((1, 8), 40 * 2 / 8), Tokens(40), topk=2)
    assert np.isclose((scores_summed * weights).sum(), 1.0)
    of_devices = group_weights(np.full((1, 4), 40 * 2 / 4), Tokens(40), share=2 / 4, number=8)
    assert np.isclose((scores_summed * of_devices).sum(), 1.0)


@pytest.mark.parametrize("by_position, kept", [(False, [1, 3]), (True, [0, 1])])
def test_an_overfull_expert_keeps_the_likeliest_or_the_first(by_position, kept):
    """An expert beyond its capacity keeps the tokens of highest probability, of equal ones the first; or, by position,
    the first tokens."""
    experts = np.array([[0], [0], [1], [0]], np.int32)
    probs = np.array([[0.2], [0.5], [0.1], [0.5]], np.float32)
    mask = kept_within(2, probs, experts, by_position)
    assert np.flatnonzero(mask[:, 0]).tolist() == sorted([*kept, 2])


def test_capacity_is_rounded_up():
    """`get_capacity` is tokens / experts x factor, rounded up, and at least `min_capacity`."""
    assert get_capacity(100, 8, 1.0) == 13 and get_capacity(8, 8, 0.5, min_capacity=4) == 4


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3, 4.0])
def test_as_many_choices_are_beyond_a_capacity_as_experts_do_not_keep(factor):
    """`beyond_capacity`, computed from loads alone, is the number of choices that experts drop."""
    draws = np.random.default_rng(3)
    experts, probs = draws.integers(0, 6, (50, 2)).astype(np.int32), draws.random((50, 2)).astype(np.float32)
    counts = np.bincount(experts.ravel(), minlength=6).astype(np.float32)
    kept = kept_within(get_capacity(100, 6, factor), probs, experts, by_position=False)
    assert beyond_capacity(counts, factor) == (~kept).sum()
