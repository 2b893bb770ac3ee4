"""Which experts a token goes to. T tokens, E experts, k chosen ones, G groups."""

import numpy as np

from parallel_core.moe.routing.rule import RoutingRule
from parallel_core.moe.routing.weights import scores
from parallel_core.numerics.dtypes import Array


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
    return columns * cost * rows[:, None]
