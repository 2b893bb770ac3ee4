"""Routing of tokens to experts as plain functions of arrays: which experts, with which weights, at which loss."""

from parallel_core.moe.routing.choice import (
    best,
    beyond_capacity,
    choose,
    get_capacity,
    kept_within,
    normalized_scores,
    probabilities,
    probabilities_gradient,
    scores,
    sinkhorn,
)
from parallel_core.moe.routing.losses import (
    Tokens,
    balance_weights,
    group_weights,
    load_of_sequences,
    log_sum_exp,
    loss_gradient,
    z_weight,
)
from parallel_core.moe.routing.rule import RoutingRule
from parallel_core.moe.routing.sampling import Noise, sample, sampled_gradient

__all__ = [
    "Noise",
    "RoutingRule",
    "Tokens",
    "balance_weights",
    "best",
    "beyond_capacity",
    "choose",
    "get_capacity",
    "group_weights",
    "kept_within",
    "load_of_sequences",
    "log_sum_exp",
    "loss_gradient",
    "normalized_scores",
    "probabilities",
    "probabilities_gradient",
    "sample",
    "sampled_gradient",
    "scores",
    "sinkhorn",
    "z_weight",
]
