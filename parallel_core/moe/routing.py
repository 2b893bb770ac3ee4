"""Routing of tokens to experts as plain functions of arrays: which experts, with which weights, at which loss.

T tokens, or s tokens of each of b sequences in rows [s, b], E experts, k chosen ones, G groups of experts.

A balancing loss (Fedus et al., "Switch Transformers", 2021) is a sum of p_te w_te over tokens t and experts e: p are
the normalized scores of all experts, w weights that follow from what experts got and have no gradient. So the weights
of all balancing losses are added up to one w. The z loss (Zoph et al., "ST-MoE", 2022) keeps logits small.

Two experts are sampled as by SparseMixer (Liu et al., "Sparse Backpropagation for Mixture-of-Experts Training", 2023).
For each in turn, of the experts not drawn yet those whose logit is more than 2 `jitter` x max(|logit|, best) below the
best are left out, one of the others is drawn by their softmax, and its weight is its probability. The gradient is
Heun's third-order estimate: a drawn expert that is not the best has a third of its weight three times out of four.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from parallel_core.config import MoEConfig
from parallel_core.numerics.dtypes import Array

EPSILON = 1e-20
"""Added to the sums of scores by which scores are divided."""


@dataclass(frozen=True, kw_only=True)
class RoutingRule:
    """The settings of a layer's router: how many experts (`topk`) it chooses, by which scores, within which groups of
    experts, and how the scores become weights."""

    topk: int
    """The number of experts that a token goes to, k."""
    sigmoid: bool = False
    """Whether scores are sigmoids of the logits; without this and `root_softplus` their softmax."""
    root_softplus: bool = False
    """Whether scores are sqrt(log(1 + exp(logit))) (DeepSeek-V4, 2026)."""
    pre_softmax: bool = False
    """Whether the softmax is over all experts; else over the chosen ones."""
    normalize: bool = False
    """Whether the chosen experts' scores are divided by their sum."""
    scale: float = 1.0
    """Factor of the chosen experts' weights."""
    groups: int = 1
    """The number of groups of neighbouring experts, G."""
    group_topk: int | None = None
    """The number of groups that a token's experts may come from; None: all."""
    group_score_topk: int | None = None
    """The number of a group's best experts whose summed scores are the group's score; None: k // group_topk."""
    sinkhorn: bool = False
    """Whether experts are chosen, in training, by balanced scores; weights come of the unbalanced scores."""

    @classmethod
    def of(cls, config: MoEConfig) -> RoutingRule:
        """The configuration's rule; with sinkhorn only k comes from it, and scores are sigmoids for k = 1, else the
        softmax over all experts. Otherwise several chosen sigmoid or square-root-softplus scores are normalized."""
        sinkhorn, function = "sinkhorn" in config.balancing, config.moe_router_score_function
        topk, sigmoid, alone = config.moe_router_topk, function == "sigmoid", function != "softmax"
        if sinkhorn:
            return cls(topk=topk, sigmoid=topk == 1, pre_softmax=True, sinkhorn=True)
        return cls(
            topk=topk,
            sigmoid=sigmoid,
            root_softplus=function == "sqrtsoftplus",
            pre_softmax=config.moe_router_pre_softmax,
            normalize=topk > 1 and (alone or (config.moe_router_norm_topk_prob and config.moe_router_pre_softmax)),
            scale=config.moe_router_topk_scaling_factor or 1.0,
            groups=config.moe_router_num_groups or 1,
            group_topk=config.moe_router_group_topk,
            group_score_topk=config.moe_router_group_score_topk,
        )

    @property
    def scores_alone(self) -> bool:
        """Whether an expert's score depends on its own logit alone."""
        return self.sigmoid or self.root_softplus

    @property
    def counted_of_group(self) -> int:
        """The number of best experts that make a group's score, their sum; AssertionError if `group_topk` is None."""
        assert self.group_topk is not None
        return self.group_score_topk or self.topk // self.group_topk

    @property
    def scores_all(self) -> bool:
        """Whether all experts are scored, so that weights are no softmax over the chosen ones' logits."""
        return self.scores_alone or self.pre_softmax


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    result = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result /= result.sum(axis=-1, keepdims=True)
    return np.asarray(result)


def softmax_gradient(probabilities: Array, gradient: Array) -> Array:
    """The gradient of the logits from their softmax `probabilities` and the gradient of that."""
    return np.asarray(probabilities * (gradient - np.sum(gradient * probabilities, axis=-1, keepdims=True)))


def lone_scores(logits: Array, rule: RoutingRule) -> Array:
    """The score of each logit on its own: its sigmoid if the rule says `sigmoid`, else sqrt(log(1 + exp(logit)))."""
    if rule.sigmoid:
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))
    return np.asarray(np.sqrt(np.logaddexp(np.asarray(0, logits.dtype), logits)))


def relative_slope(scores: Array, rule: RoutingRule) -> Array:
    """(ds / dlogit) / s for each logit's own score s: 1 - s (sigmoid), (1 - exp(-s^2)) / (2 s^2) (sqrtsoftplus)."""
    if rule.sigmoid:
        return 1 - scores
    squares = np.maximum(scores * scores, np.finfo(scores.dtype).tiny)
    return np.asarray(-np.expm1(-squares) / (2 * squares))


def scores(logits: Array, rule: RoutingRule) -> Array:
    """The scores [T, E] of all experts, without bias or balance; the logits if a softmax of the chosen ones follows."""
    if rule.scores_alone:
        return lone_scores(logits, rule)
    return softmax(logits) if rule.pre_softmax else logits


def normalized_scores(logits: Array, rule: RoutingRule) -> Array:
    """The probabilities p [T, E] of balancing losses: the softmax, or `lone_scores` divided by each token's sum."""
    if not rule.scores_alone:
        return softmax(logits)
    values = lone_scores(logits, rule)
    return np.asarray(values / (values.sum(axis=-1, keepdims=True) + EPSILON))


def probabilities(logits: Array, experts: Array, rule: RoutingRule) -> Array:
    """The weights [T, k] of the outputs of the chosen `experts` [T, k] (numbers from 0), by the `logits` [T, E]."""
    chosen = np.take_along_axis(scores(logits, rule), experts, axis=-1)
    if not rule.scores_all:
        chosen = softmax(chosen)
    if rule.normalize:
        chosen = chosen / (chosen.sum(axis=-1, keepdims=True) + EPSILON)
    return chosen if rule.scale == 1.0 else chosen * np.asarray(rule.scale, chosen.dtype)


def probabilities_gradient(logits: Array, experts: Array, rule: RoutingRule, gradient: Array) -> Array:
    """The gradient [T, E] of the logits from that of the weights [T, k]; not for `normalize` without `scores_all`."""
    gradient = gradient if rule.scale == 1.0 else gradient * np.asarray(rule.scale, gradient.dtype)
    result, values = np.zeros(logits.shape, logits.dtype), scores(logits, rule)
    chosen = np.take_along_axis(values, experts, axis=-1)
    if rule.normalize:
        total = chosen.sum(axis=-1, keepdims=True) + EPSILON
        gradient = (gradient - np.sum(gradient * chosen, axis=-1, keepdims=True) / total) / total
    if rule.scores_alone:
        gradient = gradient * chosen * relative_slope(chosen, rule)
    elif not rule.pre_softmax:
        gradient = softmax_gradient(softmax(chosen), gradient)
    for column, of_choice in zip(experts.T, gradient.T, strict=True):  # a token may have an expert twice
        result[np.arange(len(column)), column] += of_choice
    return softmax_gradient(values, result) if rule.pre_softmax and not rule.scores_alone else result


def best(values: Array, count: int) -> Array:
    """The columns of each row's `count` largest floats, int32 [T, count], largest first; of equals the first column;
    right for rows that have as many values above -inf."""
    chosen = np.empty((len(values), count), np.int32)
    left, rows = values.copy() if count > 1 else values, np.arange(len(values))
    for place in range(count):
        chosen[:, place] = column = left.argmax(axis=1)
        if place + 1 < count:
            left[rows, column] = -np.inf
    return chosen


def within_best_groups(values: Array, rule: RoutingRule) -> Array:
    """The scores `values` [T, E], with -inf outside of a token's `group_topk` best groups, by the sum of a group's
    `counted_of_group` best scores. Without `group_topk` it is `values` itself."""
    if not rule.group_topk:
        return values
    grouped = values.reshape(len(values), rule.groups, -1)
    counted = rule.counted_of_group
    best_of_group = np.partition(grouped, grouped.shape[-1] - counted, axis=-1)[..., -counted:].sum(axis=-1)
    allowed = np.zeros((len(values), rule.groups, 1), bool)
    np.put_along_axis(allowed[..., 0], best(best_of_group, rule.group_topk), True, axis=1)
    return np.where(allowed, grouped, -np.inf).reshape(values.shape)


def choose(logits: Array, rule: RoutingRule, bias: Array | None = None) -> Array:
    """The k experts of highest score `within_best_groups`, int32 [T, k], best first. bias [E]: added to the scores."""
    values = scores(logits, rule)
    return best(within_best_groups(values if bias is None else values + bias, rule), rule.topk)


def sinkhorn(cost: Array, tolerance: float = 1e-4) -> Array:
    """exp(cost) [T, E] with rows and columns scaled in turns to equal sums, until the columns' factors change by
    at most `tolerance` on average (Sinkhorn and Knopp, 1967; BASE layers, Lewis et al., 2021)."""
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
    """The most choices an expert takes: `num_tokens` choices / experts x factor, rounded up, at least the minimum."""
    return max(ceil(num_tokens / num_experts * capacity_factor), min_capacity or 0)


def beyond_capacity(counts: Array, capacity_factor: float) -> Array:
    """The number, shape [], of choices beyond the experts' capacity, from the `counts` [E] of choices by expert."""
    return np.asarray(np.maximum(counts - get_capacity(int(counts.sum()), counts.size, capacity_factor), 0).sum())


def kept_within(capacity: int | Array, probabilities: Array, experts: Array, by_position: bool) -> Array:
    """Whether a choice is kept, bool [T, k]: an expert keeps those of largest probability or, by_position, the first.
    capacity: one for all experts, or [E]. experts [T, k] int32, no -1. Of equal probabilities the first tokens' stay.
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


def load_of_sequences(experts: Array, batch: int, number: int, groups: int | None = None) -> Array:
    """The number of choices in each sequence that fall on each expert, float32 [batch, number].

    experts [s batch, k]: choices, -1 for none; row i is of sequence i modulo `batch`. number: E. groups: their number
    G; with it the result is [batch, G], the number of tokens with at least one choice in each group.
    """
    if groups is None:
        sequence = np.arange(len(experts), dtype=np.int64)[:, None] % batch
        places = np.where(experts < 0, batch * number, sequence * number + experts)
        return np.bincount(places.ravel(), minlength=batch * number + 1)[:-1].reshape(batch, number).astype(np.float32)
    reached = np.zeros((len(experts), groups + 1), bool)
    np.put_along_axis(reached, np.where(experts < 0, groups, experts // (number // groups)), True, axis=1)
    return np.asarray(reached[:, :groups].reshape(-1, batch, groups).sum(axis=0).astype(np.float32))


class Tokens(NamedTuple):
    """number: the tokens that one balancing loss is over; sequences: how many such losses are averaged."""

    number: int
    """The number of tokens over which a load was counted, T; with a loss for each sequence, one sequence's."""
    sequences: int = 1
    """The number of losses, one a sequence, that are averaged; 1: one loss over all tokens."""


def balance_weights(load: Array, tokens: Tokens, topk: int) -> Array:
    """The weights w [..., E] of the scores p_te in the loss E / (k T^2) sum_e(load_e sum_t p_te); load [..., E]: the
    number of choices of each expert; T, k: `tokens.number`, `topk`. w is divided by `tokens.sequences`."""
    number = load.shape[-1]
    return load * (number / (topk * float(tokens.number) ** 2 * tokens.sequences))


def group_weights(load: Array, tokens: Tokens, share: float, number: int) -> Array:
    """The weights w [..., E] of the scores p_te in the loss sum_g(f_g P_g), from the load [..., G] of groups; P_g: the
    mean over tokens of the group's summed scores, f_g = load_g / (share T) with `share` the load per token where it is
    even (DeepSeek-V2, 2024, section 2.2.3). number: E; T: `tokens.number`. w is divided by `tokens.sequences`."""
    weights = load / (share * float(tokens.number) ** 2 * tokens.sequences)
    return np.repeat(weights, number // load.shape[-1], axis=-1)


def z_weight(coefficient: float, tokens: int) -> float:
    """The weight of each token's log_sum_exp^2 in the z loss, `coefficient` times the mean over `tokens` tokens."""
    return coefficient / tokens


def log_sum_exp(logits: Array) -> Array:
    """log(sum_e(exp(logits_te))) of each token, [T]."""
    highest = logits.max(axis=-1)
    return np.asarray(highest + np.log(np.exp(logits - highest[:, None]).sum(axis=-1)))


def loss_gradient(logits: Array, weights: Array | None, z_weight: float, rule: RoutingRule) -> Array:
    """The gradient [T, E] of the logits from sum_te(p_te w_te) + z_weight sum_t(log_sum_exp_t^2), where p are the
    `normalized_scores`; weights: w, [T, E], None for a loss without the first sum."""
    result = np.zeros(logits.shape, logits.dtype)
    if z_weight:
        result += softmax(logits) * (2 * z_weight * log_sum_exp(logits))[:, None]
    if weights is not None:
        gradient = softmax_gradient(normalized_scores(logits, rule), weights)
        result += gradient * relative_slope(lone_scores(logits, rule), rule) if rule.scores_alone else gradient
    return result


@dataclass(frozen=True)
class Noise:
    """Uniform random numbers from 0 to 1 for one `sample`: `draws` [2, T, E] of both experts, `thirds` [2, T]."""

    draws: Array
    """[2, T, E], in (0, 1), for drawing the first and the second expert."""
    thirds: Array
    """[2, T]: above 3/4 a drawn expert keeps its whole weight though it is not the best."""


@dataclass(frozen=True)
class Draw:
    """The first, or the second, `experts` [T] of the tokens as drawn: by the probabilities `gates` [T, E], of which
    `multiplier` [T] is the expert's; weights [T]: the factor of its output."""

    experts: Array
    """[T]: the number of the expert."""
    gates: Array
    """[T, E]: the probabilities by which an expert is drawn; 0 for experts that were left out or taken before."""
    multiplier: Array
    """[T]: the probability of the drawn expert."""
    weights: Array
    """[T]: the weight by which the expert's output is multiplied: its probability, or a third of it."""


def _draw(logits: Array, taken: Array, jitter: float, noise: Noise | None, turn: int) -> Draw:
    """Draw among experts that are not `taken` [T, E]; without noise the best. turn: 0 or 1, the first or second."""
    rows, left = np.arange(len(logits)), np.where(taken, -np.inf, logits)
    highest = left.max(axis=1, keepdims=True)
    far = (highest - logits) / np.maximum(np.abs(logits), highest) > 2 * jitter
    left = np.where(far, -np.inf, left)
    gates = softmax(left)
    gumbel = left if noise is None else left - np.log(-np.log(noise.draws[turn]))
    experts = gumbel.argmax(axis=1)
    multiplier = gates[rows, experts]
    if noise is None:
        return Draw(experts, gates, multiplier, multiplier)
    whole = (experts == gates.argmax(axis=1)) | (noise.thirds[turn] > 0.75)
    return Draw(experts, gates, multiplier, multiplier * np.where(whole, 1.0, 1.0 / 3.0).astype(gates.dtype))


def sample(logits: Array, jitter: float, noise: Noise | None) -> tuple[Draw, Draw]:
    """The first and second expert of each token by SparseMixer; without noise, as in an evaluation, the two best."""
    taken = np.zeros(logits.shape, bool)
    first = _draw(logits, taken, jitter, noise, 0)
    taken[np.arange(len(logits)), first.experts] = True
    return first, _draw(logits, taken, jitter, noise, 1)


def sampled_gradient(draw: Draw, gradient: Array) -> Array:
    """The gradient [T, E] of the logits by Heun's estimate, from the gradient [T] of the weights of a draw's experts:
    that times the slope of the experts' whole probabilities, also where a weight is a third."""
    upstream = gradient * draw.multiplier
    result = -draw.gates * upstream[:, None]
    result[np.arange(len(upstream)), draw.experts] += upstream
    return np.asarray(result)
