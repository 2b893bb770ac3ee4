"""Experts that take no more than so many tokens."""

from math import ceil

import numpy as np

from parallel_core.numerics.dtypes import Array


def get_capacity(num_tokens: int, num_experts: int, capacity_factor: float, min_capacity: int | None = None) -> int:
    """Choices that an expert takes of `num_tokens`: an even share times the factor, rounded up."""
    return max(ceil(num_tokens / num_experts * capacity_factor), min_capacity or 0)


def beyond_capacity(counts: Array, capacity_factor: float) -> Array:
    """[]: how many of all choices, counts [E] on the experts, are beyond the capacity that the factor gives each."""
    return np.maximum(counts - get_capacity(int(counts.sum()), counts.size, capacity_factor), 0).sum()


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
