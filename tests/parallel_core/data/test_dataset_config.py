"""The notations of --split and --data-path, and which sources of data go together."""

import pytest

from parallel_core.config.notations import parse_blend
from parallel_core.data.dataset_config import GPTDatasetConfig, parse_split
from parallel_core.data.tokenizers import Facts


@pytest.mark.parametrize(
    ("split", "intervals"),
    [
        ("90,8,2", [(0.0, 0.9), (0.9, 0.98), (0.98, 1.0)]),
        ("100,0,0", [(0.0, 1.0), None, None]),
        ("1", [(0.0, 1.0), None, None]),
        ("0,1,1", [None, (0.0, 0.5), (0.5, 1.0)]),
        ("50, 50", [(0.0, 0.5), (0.5, 1.0), None]),
    ],
)
def test_split(split, intervals):
    """--split gives train, valid and test as shares of the data; None for a part without a share."""
    for actual, expected in zip(parse_split(split), intervals, strict=True):
        assert actual == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("split", ["", "0,0,0", "-1,2", "1,2,3,4", "abc", "1,2,x", "1.2.3"])
def test_wrong_split_is_refused(split):
    """A --split that is empty, all zeros, negative, longer than three or no numbers is an error with the flag."""
    with pytest.raises(ValueError, match="--split"):
        parse_split(split)


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (["a"], (["a"], None)),
        (["a", "b"], (["a", "b"], None)),
        (["a", "b", "c"], (["a", "b", "c"], None)),
        (["0.3", "a", "7", "b"], (["a", "b"], [0.3, 7.0])),
        (["1", "a"], (["a"], [1.0])),
    ],
)
def test_data_path(words, blend):
    """--data-path gives (prefixes, weights), weights None if none are written."""
    assert parse_blend(words) == blend


@pytest.mark.parametrize("words", ["", "1", "a 1", "0.3 a b", "0.3 a 0.7", "1 2", "0 a", "-1 a", "inf a"])
def test_wrong_data_path_is_refused(words):
    """A --data-path whose weights and prefixes do not alternate, or whose weight is not positive and finite, is an
    error with the flag."""
    with pytest.raises(ValueError, match="--data-path"):
        parse_blend(words.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of --data-path"),
        ({"blend": (["a"], None), "mock": True, "split": "1"}, r"\(2 were given\)"),
        ({"blend": (["a"], None)}, "--split is missing"),
        ({"mock": True}, "--split is missing"),
        ({"blend_per_split": [None] * 3, "split": "1"}, "leave it out"),
        ({"mock": True, "split": "1", "sequence_length": 0}, "--seq-length 0"),
    ],
)
def test_sources_that_do_not_go_together_are_refused(options, message):
    """A data config without exactly one source of data, or without the --split that it needs, is an error."""
    plain = {"random_seed": 1, "sequence_length": 8, "tokenizer": Facts(10, 9, None)}
    with pytest.raises(ValueError, match=message):
        GPTDatasetConfig(**plain | options)
