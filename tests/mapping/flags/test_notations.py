"""Readers of values that are more than a number or a word."""

import pytest

from mapping.flags.notations import MOST_LAYERS, layer_frequency

FREQUENCIES = [
    ("2", 2),
    ("-1", -1),
    ("[0]*1+[1]*3", [0, 1, 1, 1]),
    ("2*([0]+[1]*2)", [0, 1, 1, 0, 1, 1]),
    ("[0]*30+[1]*30+[0]*30", [0] * 30 + [1] * 30 + [0] * 30),
    ("[0,1]*5000", [0, 1] * 5000),
    ("[0]*(1+1)", [0, 0]),
    ("[0]*-1", []),
]


@pytest.mark.parametrize(("text", "value"), FREQUENCIES)
def test_a_frequency_is_computed(text, value):
    """A number, and sums and products of lists, are read as Python computes them, up to MOST_LAYERS entries."""
    assert layer_frequency(text) == value


WRONG = [
    "[0,0]*10000",
    "[0]*100*101",
    "10001",
    "-10001",
    "[[0]]",
    "[[0]]*2",
    "[True]",
    "2**3",
    "[x]",
    "[0.5]",
    "+".join(["[0]"] * 10**5),
    "-" * 10**5 + "1",
]


@pytest.mark.parametrize("text", WRONG, ids=[text[:20] for text in WRONG])
def test_what_is_no_frequency_is_refused(text):
    """More entries than MOST_LAYERS, lists in lists, other values and operators, and sums too long for the parser are
    refused."""
    assert MOST_LAYERS == 10_000
    with pytest.raises(ValueError):
        layer_frequency(text)
