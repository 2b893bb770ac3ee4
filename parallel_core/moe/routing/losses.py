"""Losses on a router's logits: of balance (Fedus et al., "Switch Transformers", 2021) and of size (z loss, Zoph et al.,
"ST-MoE", 2022).

Each balancing loss is a sum over tokens of sum_e(p_te w_e) with p the normalized scores of all experts and weights w
of what experts got, which have no gradient. So all of them together need one weight for each expert. s tokens of a
sequence, b sequences, E experts, k chosen ones, G groups of experts. A micro-batch's rows are [s, b].
"""

from typing import NamedTuple

import numpy as np

from parallel_core.moe.routing.choice import normalized_scores, sigmoid, softmax, softmax_gradient
from parallel_core.moe.routing.rule import RoutingRule
from parallel_core.numerics.dtypes import Array


def load_of_sequences(experts: Array, batch: int, number: int, groups: int | None = None) -> Array:
    """[b, E] float32: how many of each sequence's choices [s b, k] fell on an expert; -1 is none.

    groups: [b, G] instead: how many of its tokens go to an expert of the group.
    """
    if groups is None:
        sequence = np.arange(len(experts), dtype=np.int64)[:, None] % batch
        places = np.where(experts < 0, batch * number, sequence * number + experts)
        return np.bincount(places.ravel(), minlength=batch * number + 1)[:-1].reshape(batch, number).astype(np.float32)
    reached = np.zeros((len(experts), groups + 1), bool)
    np.put_along_axis(reached, np.where(experts < 0, groups, experts // (number // groups)), True, axis=1)
    return np.asarray(reached[:, :groups].reshape(-1, batch, groups).sum(axis=0).astype(np.float32))


class Tokens(NamedTuple):
    """Numbers of tokens that weights are made of."""

    number: int
    """That the load is of."""
    sequences: int = 1
    """Losses that are averaged."""


def balance_weights(load: Array, tokens: Tokens, topk: int) -> Array:
    """The weights of E / (k T^2) sum_e(load_e sum_t p_te) for load [..., E] of T tokens; averaged over sequences."""
    number = load.shape[-1]
    return load * (number / (topk * float(tokens.number) ** 2 * tokens.sequences))


def group_weights(load: Array, tokens: Tokens, share: float, number: int) -> Array:
    """[..., E]: the weights of sum_g(f_g P_g) for the load [..., G] of groups of experts: P_g is the mean over tokens
    of the group's scores, f_g its part of the load, 1 where that is even: load / (share T) (DeepSeek-V2, 2024,
    section 2.2.3)."""
    weights = load / (share * float(tokens.number) ** 2 * tokens.sequences)
    return np.repeat(weights, number // load.shape[-1], axis=-1)


def z_weight(coefficient: float, tokens: int) -> float:
    """Of each of so many tokens' log_sum_exp^2 in the z loss."""
    return coefficient / tokens


def log_sum_exp(logits: Array) -> Array:
    """[T]: log(sum_e(exp(logits_te)))."""
    highest = logits.max(axis=-1)
    return np.asarray(highest + np.log(np.exp(logits - highest[:, None]).sum(axis=-1)))


def loss_gradient(logits: Array, weights: Array | None, z_weight: float, rule: RoutingRule) -> Array:
    """[T, E]: the logits' gradient of sum_te(p_te w_te) + z_weight sum_t(log_sum_exp_t^2), with weights w [T, E].

    A normalized sigmoid's gradient is a softmax's times 1 - sigmoid.
    """
    result = np.zeros(logits.shape, logits.dtype)
    if z_weight:
        result += softmax(logits) * (2 * z_weight * log_sum_exp(logits))[:, None]
    if weights is not None:
        gradient = softmax_gradient(normalized_scores(logits, rule), weights)
        result += gradient * (1 - sigmoid(logits)) if rule.sigmoid else gradient
    return result
