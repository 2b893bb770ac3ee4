"""Faults as values: loss spikes, slow ranks, and the sentences about a step that was computed twice."""

import math

import numpy as np
import pytest

from parallel_core.faults import Figures, Findings, Place, Spikes, explained, stragglers

QUIET = [2.0 + 0.01 * math.sin(step) for step in range(120)]
SPIKES = {
    "far from the mean": (Spikes(6.0, False, False), QUIET, Figures(2.2, 1.0), "standard deviations"),
    "within the noise": (Spikes(6.0, False, False), QUIET, Figures(2.01, 1.0), ""),
    "too early to tell": (Spikes(6.0, False, False), QUIET[:19], Figures(9.0, 1.0), ""),
    "lower is none": (Spikes(6.0, False, False), QUIET, Figures(0.1, 1.0), ""),
    "ten times any loss": (Spikes(None, True, False), QUIET, Figures(25.0, 1.0), "a loss 12.4 times"),
    "nine times": (Spikes(None, True, False), QUIET, Figures(18.0, 1.0), ""),
    "ten times any norm": (Spikes(None, False, True), QUIET, Figures(2.0, 11.0), "a gradient norm 11.0 times"),
    "a norm nobody looks at": (Spikes(None, True, False), QUIET, Figures(2.0, 11.0), ""),
    "no number is no spike": (Spikes(6.0, True, True), QUIET, Figures(math.nan, 1.0), ""),
    "beside losses below 0": (Spikes(None, True, False), [-loss for loss in QUIET], Figures(2.0, 1.0), ""),
    "beside losses of 0": (Spikes(None, True, False), [0.0] * 120, Figures(0.0, 1.0), ""),
    "of losses that are all equal": (Spikes(6.0, False, False), [2.0] * 50, Figures(2.0, 1.0), ""),
}


@pytest.mark.parametrize("name", SPIKES)
def test_spikes(name):
    """`Spikes.judge` finds a loss by its deviation from the mean or by Megatron's factor of ten, and not before enough
    steps; a spike does not change the measure, so that a second one is found, too."""
    spikes, before, figures, said = SPIKES[name]
    assert not any(spikes.judge(Figures(loss, 1.0)) for loss in before)
    for _ in range(2):
        found = spikes.judge(figures)
        assert said in found and bool(found) == bool(said)


PARTS = ("forward-compute", "optimizer")
ALIKE = np.array([[0.10, 0.02], [0.10, 0.02], [0.10, 0.02], [0.10, 0.02]])
SLOW = {
    "none": (ALIKE, [range(4)], []),
    "one rank's forward": (ALIKE + np.array([[0, 0], [0, 0], [0.05, 0], [0, 0]]), [range(4)], [(2, 0)]),
    "one rank's update": (ALIKE + np.array([[0, 0.03], [0, 0], [0, 0], [0, 0]]), [range(4)], [(0, 1)]),
    "a stage with more work is not slow": (ALIKE * np.array([[1], [1], [3], [3]]), [(0, 1), (2, 3)], []),
    "one of a pair": (ALIKE + np.array([[0, 0], [0, 0], [0, 0], [0.1, 0]]), [(0, 1), (2, 3)], [(3, 0)]),
    "too little to matter": (ALIKE + np.array([[0, 0], [0, 0.002], [0, 0], [0, 0]]), [range(4)], []),
    "a rank alone has nothing to be compared with": (ALIKE[:1], [range(1)], []),
    "two": (ALIKE + np.array([[0.1, 0], [0, 0], [0, 0], [0, 0.1]]), [range(4)], [(0, 0), (3, 1)]),
}


@pytest.mark.parametrize("name", SLOW)
def test_stragglers(name):
    """`stragglers` names rank and part of the step that is slower than in the other ranks with the same work, unless it
    is too little to matter; a stage with more work is not slow."""
    seconds, alike, slow = SLOW[name]
    said = stragglers(PARTS, seconds, alike, step=0.15)
    assert sorted(line.split(":")[0] for line in said) == sorted(f"rank {r} is slow in {PARTS[c]}" for r, c in slow)


NAN = Figures(math.nan, math.nan)
PLACE = Place(
    "linear_forward", "forward", "decoder.layers.1.mlp.linear_fc1", 5, 0, (1,), ("sample 21: x, sequences 7",)
)


def test_what_made_it_goes_before_what_was_given_it():
    """The sentence about a non-finite result names the rank whose inputs were finite, with operator, module,
    micro-batch and samples, and no rank that only received it; non-finite weights come before both."""
    found = [Findings(0, carried=PLACE), Findings(1, origin=PLACE, gradients="rank 1: the gradient of w is not finite")]
    text = "\n".join(explained(3, "a result that is no number", NAN, NAN, found))
    assert "repeatable" in text and "rank 0" not in text
    place = (
        "forward of linear_forward of decoder.layers.1.mlp.linear_fc1, micro-batch 5, row 1 (sample 21: x, sequences 7)"
    )
    assert f"rank 1: first in the {place}" in text
    assert "weights a.b" in explained(3, "x", NAN, NAN, [Findings(2, carried=PLACE, weights=("a.b",)), found[1]])[1]


def test_another_result_is_hardware():
    """A second computation with another result is called transient, with the rank whose own figures differ."""
    (line,) = explained(3, "x", NAN, Figures(2.0, 1.0), [Findings(0), Findings(1, differs=True)])
    assert "transient" in line and "on rank 1" in line and "second result" in line


@pytest.mark.parametrize("one", [Findings(1), Findings(2, PLACE, PLACE, ("w",), "sentence", True)])
def test_findings_travel_as_text(one):
    """A rank's findings survive packing to text, in which they are sent between ranks."""
    assert Findings.unpacked(one.packed()) == one
