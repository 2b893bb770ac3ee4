"""`Sampling`: the choice of the next token."""

import numpy as np
import pytest

from parallel_core.sampling import Sampling, log_probability

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.25, 0.05], np.float32))


def _frequencies(**how) -> np.ndarray:
    """The share of each token in 4000 draws from LOGITS with these settings."""
    generator = np.random.default_rng(0)
    sampling = Sampling(**how)
    drawn = [sampling.next_token(LOGITS, generator) for _ in range(4000)]
    return np.bincount(drawn, minlength=len(LOGITS)) / len(drawn)


def test_temperature_0_takes_the_likeliest():
    """Temperature 0, the default, gives the token of the largest logit."""
    assert Sampling().next_token(LOGITS, np.random.default_rng(0)) == 1


def test_temperature_1_draws_by_probability():
    """Temperature 1 draws each token with its softmax probability."""
    np.testing.assert_allclose(_frequencies(temperature=1), np.exp(LOGITS), atol=0.03)


def test_temperature_divides_logits():
    """Temperature 1/2 draws by squared probabilities."""
    squared = np.exp(2 * LOGITS)
    np.testing.assert_allclose(_frequencies(temperature=0.5), squared / squared.sum(), atol=0.03)


def test_top_k_leaves_the_k_likeliest():
    """top_k 2 draws among the two likeliest tokens alone, by their probabilities."""
    np.testing.assert_allclose(_frequencies(temperature=1, top_k=2), [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], atol=0.03)


@pytest.mark.parametrize(("top_p", "left"), [(0.3, [1]), (0.5, [1, 3]), (0.7, [1, 2, 3]), (1.0, [0, 1, 2, 3, 4])])
def test_top_p_leaves_the_fewest_that_have_the_probability(top_p, left):
    """top_p draws among the fewest likeliest tokens whose probabilities add up to it."""
    assert np.flatnonzero(_frequencies(temperature=1, top_p=top_p)).tolist() == left


def test_large_logits_do_not_overflow():
    """Logits of 10^4 at temperature 0.1 are drawn from without overflow."""
    logits = np.array([1e4, 0.0, -1e4], np.float32)
    assert Sampling(temperature=0.1).next_token(logits, np.random.default_rng(0)) == 0


def test_a_penalty_is_on_tokens_that_were_said():
    """--repetition-penalty divides positive and multiplies negative logits of tokens that occurred, each once; the
    given logits are not changed."""
    logits = np.array([4.0, 3.0, -1.0, -1.5], np.float32)
    said = Sampling(repetition_penalty=2.0)
    assert said.next_token(logits, np.random.default_rng(0), [0]) == 1
    assert said.next_token(logits[2:], np.random.default_rng(0), [0, 0]) == 1
    assert said.next_token(logits, np.random.default_rng(0), []) == 0
    assert logits.tolist() == [4.0, 3.0, -1.0, -1.5]


def test_probabilities_are_the_models_own():
    """`log_probability` is the model's log softmax, whatever the sampling."""
    np.testing.assert_allclose([log_probability(LOGITS, token) for token in range(5)], LOGITS, atol=1e-6)


def test_texts_of_a_batch_have_draws_of_their_own():
    """Each text of a batch has its own random numbers; the first one's are those of a text alone."""
    sampling = Sampling(temperature=1.0, seed=5)
    alone, first, second = (sampling.generator(number).random(8).tolist() for number in (0, 0, 1))
    assert alone == first != second


@pytest.mark.parametrize(
    "how", [{"temperature": -1}, {"top_k": -1}, {"top_p": 1.5}, {"repetition_penalty": 0}, {"seed": -1}]
)
def test_values_out_of_range_name_their_flag(how):
    """A setting out of range raises an error that names its flag."""
    (name,) = how
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} .*must"):
        Sampling(**how)
