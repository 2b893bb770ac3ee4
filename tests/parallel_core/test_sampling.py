"""How the next token is chosen."""

import numpy as np
import pytest

from parallel_core.sampling import check_sampling, next_token

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.25, 0.05], np.float32))


def _frequencies(**how) -> np.ndarray:
    generator = np.random.default_rng(0)
    drawn = [next_token(LOGITS, generator, **how) for _ in range(4000)]
    return np.bincount(drawn, minlength=len(LOGITS)) / len(drawn)


def test_temperature_0_takes_the_likeliest():
    assert next_token(LOGITS, np.random.default_rng(0), 0) == 1


def test_temperature_1_draws_by_probability():
    np.testing.assert_allclose(_frequencies(temperature=1), np.exp(LOGITS), atol=0.03)


def test_temperature_divides_logits():
    """At 1/2 probabilities are squared."""
    squared = np.exp(2 * LOGITS)
    np.testing.assert_allclose(_frequencies(temperature=0.5), squared / squared.sum(), atol=0.03)


def test_top_k_leaves_the_k_likeliest():
    np.testing.assert_allclose(_frequencies(temperature=1, top_k=2), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], atol=0.03)


@pytest.mark.parametrize(("top_p", "left"), [(0.3, [1]), (0.5, [1, 3]), (0.7, [1, 2, 3]), (1.0, [0, 1, 2, 3, 4])])
def test_top_p_leaves_the_fewest_that_have_the_probability(top_p, left):
    assert np.flatnonzero(_frequencies(temperature=1, top_p=top_p)).tolist() == left


def test_large_logits_do_not_overflow():
    assert next_token(np.array([1e4, 0.0, -1e4], np.float32), np.random.default_rng(0), 0.1) == 0


@pytest.mark.parametrize(("how", "flag"), [((-1, 0, 0), "temperature"), ((1, -1, 0), "top-k"), ((1, 0, 1.5), "top-p")])
def test_values_out_of_range_name_their_flag(how, flag):
    with pytest.raises(ValueError, match=f"--{flag}"):
        check_sampling(*how)
