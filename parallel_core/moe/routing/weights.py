"""The weights of the chosen experts, and their gradient. T tokens, E experts, k chosen ones."""

import numpy as np

from parallel_core.moe.routing.rule import EPSILON, RoutingRule
from parallel_core.numerics.dtypes import Array


def softmax(logits: Array) -> Array:
    """Over the last axis."""
    result = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result /= result.sum(axis=-1, keepdims=True)
    return result


def softmax_gradient(probabilities: Array, gradient: Array) -> Array:
    """The logits' gradient, of that of their softmax."""
    return probabilities * (gradient - np.sum(gradient * probabilities, axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-logits))


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
    return values / (values.sum(axis=-1, keepdims=True) + EPSILON)


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
