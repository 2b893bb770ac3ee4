"""Factors of the rows of queries' and keys' weights that shrink scores above a threshold (MuonClip; Kimi K2, 2025,
section 2.1).

n query heads, g key/value groups, d head size; of latent attention p plain and r rotary channels of a head, e of a
value. eta: of each head, threshold / largest score, at most 1; heads that share a key have the least one of theirs.
Queries are multiplied by eta^alpha, keys by eta^(1 - alpha), but rotary channels of latent attention's queries by their
head's eta and the one rotary key of all heads by 1. Values, gates and biases stay.
"""

import numpy as np

from parallel_core.attention.fused_rows import QueryKeyValueRows
from parallel_core.numerics.dtypes import Array


def shrinking(largest: Array, threshold: float) -> Array:
    """Eta [n] of each head: threshold / largest score [n] where that score is above the threshold (which is above 0);
    else 1, as for a head that has seen no score (-inf); NaN for a score that is NaN."""
    return threshold / np.maximum(largest, threshold)


def fused_rows(rows: QueryKeyValueRows, eta: Array, alpha: float) -> Array:
    """Factors of the rows of linear_qkv, [(n + 2 g) d], or [(2 n + 2 g) d] with gates: eta^alpha for queries, eta^(1 -
    alpha) for keys, 1 for values and gates. n query heads, g groups, d head size; eta [n]: of each query head; heads of
    a group share its key, so that the group's least eta counts for all of them."""
    factors = np.ones(rows.count)
    for group, least in enumerate(eta.reshape(rows.groups, -1).min(axis=1)):
        queries, *_, keys, _ = rows.of_group(group)
        factors[queries.start : queries.stop] = least**alpha
        factors[keys.start : keys.stop] = least ** (1 - alpha)
    return factors


def latent_query_rows(eta: Array, alpha: float, plain: int, rotary: int) -> Array:
    """Factors [n (p + r)] of the rows of the linear that gives latent attention's queries, head after head: eta^alpha
    for its p `plain` channels, then eta for its r `rotary` ones. eta [n]: of each head."""
    return _of_heads((eta**alpha, plain), (eta, rotary))


def latent_key_value_rows(eta: Array, alpha: float, plain: int, value: int) -> Array:
    """Factors [n (p + e)] of the rows of linear_kv_up_proj, head after head: eta^(1 - alpha) for the p `plain` channels
    of its key, then 1 for the e channels of its `value`. eta [n]: of each head."""
    return _of_heads((eta ** (1 - alpha), plain), (np.ones_like(eta), value))


def _of_heads(*parts: tuple[Array, int]) -> Array:
    """Factors of all rows, head after head. parts: of each part of a head, its factors [n] and its number of rows a
    head."""
    return np.concatenate([np.repeat(factors[:, None], rows, axis=1) for factors, rows in parts], axis=1).ravel()
