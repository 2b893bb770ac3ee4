"""Which experts a token goes to, and the weights of the chosen ones. T tokens, E experts, k chosen ones, G groups."""

from math import ceil

import numpy as np

from parallel_core.moe.routing.rule import EPSILON, RoutingRule
from parallel_core.numerics.dtypes import Array


def softmax(logits: Array) -> Array:
    """Over the last axis."""
    result = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result /= result.sum(axis=-1, keepdims=True)
    return np.asarray(result)


def softmax_gradient(probabilities: Array, gradient: Array) -> Array:
    """The logits' gradient, of that of their softmax."""
    return np.asarray(probabilities * (gradient - np.sum(gradient * probabilities, axis=-1, keepdims=True)))


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def scores(logits: Array, rule: RoutingRule) -> Array:
    """[T, E]: what experts are chosen by, and weighed with: scores, or the logits where only the chosen are scored."""
    if rule.sigmoid:
        return sigmoid(logits)
    return softmax(logits) if rule.pre_softmax else logits


def normalized_scores(logits: Array, rule: RoutingRule) -> Array:
    """[T, E]: what balancing losses take for probabilities: scores of all experts that sum to one."""
    if not rule.sigmoid:
        return softmax(logits)
    values = sigmoid(logits)
    return np.asarray(values / (values.sum(axis=-1, keepdims=True) + EPSILON))


def probabilities(logits: Array, experts: Array, rule: RoutingRule) -> Array:
    """[T, k]: the weights of the chosen experts [T, k]."""
    chosen = np.take_along_axis(scores(logits, rule), experts, axis=-1)
    if not rule.scores_all:
        chosen = softmax(chosen)
    if rule.normalize:
        chosen = chosen / (chosen.sum(axis=-1, keepdims=True) + EPSILON)
    return chosen if rule.scale == 1.0 else chosen * np.asarray(rule.scale, chosen.dtype)


def probabilities_gradient(logits: Array, experts: Array, rule: RoutingRule, gradient: Array) -> Array:
    """[T, E]: the logits' gradient, of that of the weights [T, k]."""
    gradient = gradient if rule.scale == 1.0 else gradient * np.asarray(rule.scale, gradient.dtype)
    result, values = np.zeros(logits.shape, logits.dtype), scores(logits, rule)
    chosen = np.take_along_axis(values, experts, axis=-1)
    if rule.normalize:
        total = chosen.sum(axis=-1, keepdims=True) + EPSILON
        gradient = (gradient - np.sum(gradient * chosen, axis=-1, keepdims=True) / total) / total
    if rule.sigmoid:
        gradient = gradient * chosen * (1 - chosen)
    elif not rule.pre_softmax:
        gradient = softmax_gradient(softmax(chosen), gradient)
    np.put_along_axis(result, experts, gradient, axis=-1)
    return softmax_gradient(values, result) if rule.pre_softmax and not rule.sigmoid else result


def best(values: Array, count: int) -> Array:
    """[T, count] int32: columns of the largest values of each row, largest first; of equal ones the first.

    For few columns this is several times as fast as a partition.
    """
    chosen = np.empty((len(values), count), np.int32)
    left, rows = values.copy() if count > 1 else values, np.arange(len(values))
    for place in range(count):
        chosen[:, place] = column = left.argmax(axis=1)
        if place + 1 < count:
            left[rows, column] = -np.inf
    return chosen


def within_best_groups(values: Array, rule: RoutingRule) -> Array:
    """[T, E]: -inf outside of the best groups; a group is as good as the sum of its best few experts."""
    if not rule.group_topk:
        return values
    grouped = values.reshape(len(values), rule.groups, -1)
    counted = rule.counted_of_group
    best_of_group = np.partition(grouped, grouped.shape[-1] - counted, axis=-1)[..., -counted:].sum(axis=-1)
    allowed = np.zeros((len(values), rule.groups, 1), bool)
    np.put_along_axis(allowed[..., 0], best(best_of_group, rule.group_topk), True, axis=1)
    return np.where(allowed, grouped, -np.inf).reshape(values.shape)


def choose(logits: Array, rule: RoutingRule, bias: Array | None = None) -> Array:
    """[T, k] int32: the experts with the highest scores, to which `bias` [E] is added for the choice alone."""
    values = scores(logits, rule)
    return best(within_best_groups(values if bias is None else values + bias, rule), rule.topk)


def sinkhorn(cost: Array, tolerance: float = 1e-4) -> Array:
    """[T, E]: exp(cost) with rows and columns scaled in turns until each row has the same sum, and each column
    (Sinkhorn and Knopp, 1967; BASE layers, Lewis et al., 2021)."""
    cost, epsilon = np.exp(cost), np.asarray(1e-8, cost.dtype)
    tokens, experts = cost.shape
    columns, error = np.ones(experts, cost.dtype), np.inf
    rows = np.ones(tokens, cost.dtype)
    while error > tolerance:
        rows = 1 / (tokens * (cost @ columns + epsilon))
        before, columns = columns, 1 / (experts * (rows @ cost + epsilon))
        error = np.abs(before - columns).mean()
    return np.asarray(columns * cost * rows[:, None])


def get_capacity(num_tokens: int, num_experts: int, capacity_factor: float, min_capacity: int | None = None) -> int:
    """Choices that an expert takes of `num_tokens`: an even share times the factor, rounded up."""
    return max(ceil(num_tokens / num_experts * capacity_factor), min_capacity or 0)


def beyond_capacity(counts: Array, capacity_factor: float) -> Array:
    """[]: how many of all choices, counts [E] on the experts, are beyond the capacity that the factor gives each."""
    return np.asarray(np.maximum(counts - get_capacity(int(counts.sum()), counts.size, capacity_factor), 0).sum())


def kept_within(capacity: int | Array, probabilities: Array, experts: Array, by_position: bool) -> Array:
    """[T, k] bool: the choices that experts keep: those of the largest probability or, by_position, the first tokens.

    capacity: of every expert, or of each [E]. experts [T, k] int32; among equal ones the first tokens are kept.
    """
    chosen, weights = experts.ravel(), probabilities.ravel()
    kept, counts = np.ones(chosen.shape, bool), np.bincount(chosen)
    capacities = np.broadcast_to(capacity, counts.shape) if np.ndim(capacity) == 0 else np.asarray(capacity)
    for expert in np.flatnonzero(counts > capacities[: len(counts)]):
        places = np.flatnonzero(chosen == expert)
        if not by_position:
            places = places[np.argsort(-weights[places], kind="stable")]
        kept[places[capacities[expert] :]] = False
    return kept.reshape(experts.shape)
