"""`--qk-clip`: factors of the rows of query and key weights that bound attention scores."""

import numpy as np
import pytest

from parallel_core.attention.fused_rows import QueryKeyValueRows
from parallel_core.attention.qk_clip import fused_rows, latent_key_value_rows, latent_query_rows, shrinking

HEADS, PLAIN, ROTARY, VALUE, WIDTH = 4, 3, 2, 5, 7
ALPHAS = [0.0, 0.3, 0.5, 1.0]


def weight(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, WIDTH))


def test_only_what_is_too_large_shrinks():
    """`shrinking(largest scores, limit)` is limit / score for heads above the limit and 1 for the others, also with
    negative scores or none."""
    assert shrinking(np.array([50.0, 100.0, 200.0, -3.0, -np.inf]), 100.0).tolist() == [1.0, 1.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gated", [False, True])
def test_scores_of_a_group_shrink_by_its_least_factor(alpha, gated):
    """All scores of a key-value group of fused query-key-value weights are multiplied by its smallest factor, however
    alpha divides it between queries and keys; values and gates do not change."""
    rows, eta = QueryKeyValueRows(HEADS, 2, PLAIN, gated), np.array([0.5, 1.0, 1.0, 0.8])
    before, x = weight(rows.count, 1), weight(1, 2)[0]
    after = before * fused_rows(rows, eta, alpha)[:, None]
    for group, least in enumerate((0.5, 0.8)):
        queries, *others, keys, values = (list(run) for run in rows.of_group(group))
        scores = [(w[queries] @ x).reshape(2, PLAIN) @ (w[keys] @ x) for w in (before, after)]
        np.testing.assert_allclose(scores[1], least * scores[0])
        for same in (values, *others):
            assert np.array_equal(before[same], after[same])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_scores_of_latent_attention_shrink_by_each_heads_factor(alpha):
    """Latent attention's scores are multiplied by each head's factor, in plain and rotary channels; the rotary key,
    which heads share, and the values do not change."""
    eta = np.array([1.0, 0.5, 0.8, 0.1])
    queries, keys = weight(HEADS * (PLAIN + ROTARY), 3), weight(HEADS * (PLAIN + VALUE), 4)
    x, rotary_key = weight(1, 5)[0], weight(1, 6)[0, :ROTARY]

    def scores(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        of_heads = (queries @ x).reshape(HEADS, PLAIN + ROTARY)
        plain = (keys @ x).reshape(HEADS, PLAIN + VALUE)[:, :PLAIN]
        return (of_heads[:, :PLAIN] * plain).sum(1) + of_heads[:, PLAIN:] @ rotary_key

    factors = latent_key_value_rows(eta, alpha, PLAIN, VALUE)
    after = scores(queries * latent_query_rows(eta, alpha, PLAIN, ROTARY)[:, None], keys * factors[:, None])
    np.testing.assert_allclose(after, eta * scores(queries, keys))
    assert (factors.reshape(HEADS, -1)[:, PLAIN:] == 1).all()
