"""The operators of a router, of MindSpore operators; scores by which experts are chosen are float32.

T tokens, E experts, k choices.
"""

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.moe.routing import EPSILON, Noise, RoutingRule
from parallel_core.numerics.dtypes import Array
from pynative.tape.autograd import Function, detached

FLOAT32, INT32 = mindspore.float32, mindspore.int32


def _rows(logits: Tensor) -> Tensor:
    return ops.cast(logits, FLOAT32).reshape(-1, logits.shape[-1])


def _scores(rows: Tensor, rule: RoutingRule) -> Tensor:
    if rule.scores_alone:
        return _lone_scores(rows, rule)
    return ops.softmax(rows, -1) if rule.pre_softmax else rows


def _lone_scores(rows: Tensor, rule: RoutingRule) -> Tensor:
    if rule.sigmoid:
        return ops.sigmoid(rows)
    return ops.sqrt(ops.relu(rows) + ops.log(1.0 + ops.exp(-ops.abs(rows))))


def _relative_slope(rows: Tensor, rule: RoutingRule) -> Tensor:
    """(d score / d logit) / score for logits `rows` [T, E], each of which is scored by itself (sigmoid,
    sqrtsoftplus)."""
    scores = _lone_scores(rows, rule)
    return 1.0 - scores if rule.sigmoid else ops.sigmoid(rows) / (2.0 * scores * scores)


def _normalized(rows: Tensor, rule: RoutingRule) -> Tensor:
    if not rule.scores_alone:
        return ops.softmax(rows, -1)
    values = _lone_scores(rows, rule)
    return values / (values.sum(axis=-1, keepdims=True) + EPSILON)


def _best(values: Tensor, count: int) -> Tensor:
    """Columns, int32 [T, count], of the largest values of each row, the largest first; of equal ones the first, in
    which order a CPU's `topk` gives them only where it is asked for all."""
    return ops.cast(ops.topk(values, values.shape[-1], -1)[1][..., :count], INT32)


def _is(numbers: Tensor, count: int) -> Tensor:
    """Bool [..., k, count] of numbers [..., k]: whether number i is 0, 1, ..., count - 1; none for -1."""
    return ops.expand_dims(numbers, -1) == Tensor(np.arange(count, dtype=np.int32))


def _any(numbers: Tensor, count: int) -> Tensor:
    """Float32 [T, count] of numbers [T, k]: 1 where one of the row's numbers is the column's."""
    return ops.cast(_is(numbers, count), FLOAT32).max(axis=1)


def _within_best_groups(values: Tensor, rule: RoutingRule) -> Tensor:
    if not rule.group_topk:
        return values
    grouped = values.reshape(values.shape[0], rule.groups, -1)
    best_of_group = ops.topk(grouped, rule.counted_of_group, -1)[0].sum(axis=-1)
    allowed = ops.expand_dims(_any(_best(best_of_group, rule.group_topk), rule.groups), -1)
    hidden = Tensor(np.float32(-np.inf))
    return ops.where(ops.broadcast_to(allowed > 0, grouped.shape), grouped, hidden).reshape(values.shape)


def _sinkhorn(cost: Tensor, tolerance: float = 1e-4) -> Tensor:
    cost = ops.exp(cost)
    tokens, experts = cost.shape
    columns, error = ops.ones((experts,), FLOAT32), np.inf
    rows = ops.ones((tokens,), FLOAT32)
    while error > tolerance:
        rows = 1.0 / (tokens * ((cost * columns).sum(axis=1) + 1e-8))
        before, columns = columns, 1.0 / (experts * ((ops.expand_dims(rows, 1) * cost).sum(axis=0) + 1e-8))
        error = float(ops.abs(before - columns).mean().asnumpy())
    return columns * cost * ops.expand_dims(rows, 1)


def choose_experts(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None, balanced: bool = False) -> Tensor:
    rows = detached(_rows(logits))
    if balanced:
        return _best(_sinkhorn(rows), rule.topk)
    values = _scores(rows, rule)
    return _best(_within_best_groups(values if bias is None else values + bias, rule), rule.topk)


def routing_probabilities(logits: Tensor, experts: Tensor, rule: RoutingRule) -> Tensor:
    chosen = ops.gather_d(_scores(_rows(logits), rule), 1, experts)
    if not rule.scores_all:
        chosen = ops.softmax(chosen, -1)
    if rule.normalize:
        chosen = chosen / (chosen.sum(axis=-1, keepdims=True) + EPSILON)
    return chosen if rule.scale == 1.0 else chosen * rule.scale


def _draw(rows: Tensor, left: Tensor, jitter: float, draws: Tensor | None, thirds: Tensor | None) -> tuple[Any, ...]:
    """(weights [T, 1], experts [T, 1]) of one draw of SparseMixer (`routing.sample`) among the experts whose logit
    `left` [T, E] is finite; rows: all logits. draws [T, E], by which an expert is drawn, and thirds [T], above 3/4 of
    which it keeps its whole weight, are uniform random numbers; None: the likeliest expert and its whole weight."""
    highest = left.max(axis=1, keepdims=True)
    far = (highest - rows) / ops.maximum(ops.abs(rows), highest) > 2 * jitter
    hidden = Tensor(np.float32(-np.inf))
    left = ops.where(ops.logical_or(detached(far), left == hidden), hidden, rows)
    gates = ops.softmax(left, -1)
    numbers = detached(left) if draws is None else detached(left) - ops.log(-ops.log(draws))
    experts = _best(numbers, 1)
    multiplier = ops.gather_d(gates, 1, experts)
    if thirds is None:
        return multiplier, experts
    whole = ops.logical_or(experts == _best(detached(gates), 1), ops.expand_dims(thirds > 0.75, 1))
    lost = ops.where(whole, Tensor(np.float32(0.0)), Tensor(np.float32(2.0 / 3.0)))
    return multiplier - detached(multiplier) * lost, experts


def sample_experts(logits: Tensor, jitter: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
    rows = _rows(logits)
    draws = [None, None] if noise is None else [Tensor(part) for part in noise.draws]
    thirds = [None, None] if noise is None else [Tensor(part) for part in noise.thirds]
    first, expert = _draw(rows, detached(rows), jitter, draws[0], thirds[0])
    hidden = Tensor(np.float32(-np.inf))
    left = ops.where(_any(expert, rows.shape[1]) > 0, hidden, detached(rows))
    second, other = _draw(rows, left, jitter, draws[1], thirds[1])
    return ops.cat((first, second), 1), ops.cat((expert, other), 1)


def drop_over_capacity(
    probs: Tensor, experts: Tensor, capacity: int | Array, by_position: bool
) -> tuple[Tensor, Tensor]:
    tokens, number = experts.shape[0], int(experts.max().asnumpy()) + 1
    capacities = np.minimum(capacity if np.ndim(capacity) else np.full(number, capacity), tokens)[:number]
    first_is_largest = Tensor(np.arange(tokens, 0, -1, dtype=np.float32)[:, None, None])
    order = first_is_largest if by_position else ops.expand_dims(detached(probs), -1)
    chosen = ops.where(_is(experts, number), order, Tensor(np.float32(-1.0)))
    most = max(int(capacities.max()), 1)
    best_of_expert = _best(chosen.max(axis=1).T, most)
    within = Tensor(np.arange(most) < capacities[:, None])
    taken = _any(ops.where(within, best_of_expert, Tensor(np.int32(-1))), tokens).T
    kept = ops.gather_d(taken, 1, experts)
    return probs * kept, ops.where(kept > 0, experts, Tensor(np.int32(-1)))


def load_of_experts(experts: Tensor, batch: int, number: int, groups: int | None = None) -> Tensor:
    if groups is None:
        marks = ops.cast(_is(experts, number), FLOAT32).sum(axis=1)
    else:
        marks = _any(ops.where(experts < 0, experts, experts // (number // groups)), groups)
    return marks.reshape(-1, batch, marks.shape[-1]).sum(axis=0)


def _log_sum_exp(rows: Tensor) -> Tensor:
    highest = ops.amax(rows, -1, True)
    return (highest + ops.log(ops.exp(rows - highest).sum(axis=-1, keepdims=True))).reshape(-1)


def router_statistics(logits: Tensor, rule: RoutingRule, sizes: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    _, batch, number = logits.shape
    rows = detached(_rows(logits))
    scores = _normalized(rows, rule)
    sums = scores.reshape(-1, batch, number).sum(axis=0)
    load = load_of_experts(_best(scores, rule.topk), batch, number)
    squares = ops.square(_log_sum_exp(rows)).sum() if sizes else Tensor(np.float32(0.0))
    return sums, load, squares


class _WithLosses(Function):
    def forward(ctx: Any, logits: Tensor, weights: Tensor | None, z_weight: float, rule: RoutingRule) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.weights, ctx.z_weight, ctx.rule = weights, z_weight, rule
        return detached(logits)

    def backward(ctx: Any, dlogits: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        rows, gradient = _rows(logits), _rows(dlogits)
        if ctx.z_weight:
            factor = ops.expand_dims(_log_sum_exp(rows) * (2.0 * ctx.z_weight), 1)
            gradient = gradient + ops.softmax(rows, -1) * factor
        if ctx.weights is not None:
            weights = ops.broadcast_to(ctx.weights, logits.shape).reshape(rows.shape)
            scores = _normalized(rows, ctx.rule)
            own = scores * (weights - (weights * scores).sum(axis=-1, keepdims=True))
            gradient = gradient + (own * _relative_slope(rows, ctx.rule) if ctx.rule.scores_alone else own)
        return ops.cast(gradient.reshape(logits.shape), dlogits.dtype), None, None, None


def with_router_losses(logits: Tensor, weights: Tensor | None, z_weight: float, rule: RoutingRule) -> Tensor:
    return _WithLosses.apply(logits, weights, z_weight, rule)
