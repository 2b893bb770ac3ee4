"""The number of operators that a layer launches, which decides the host's time and, on an Ascend, its lead over the
device. Counted, not timed. A number that has to grow is raised here, with the reason in the commit."""

import pytest

from benchmarks.operators import counts_of_a_layer

LIMITS = {
    "host": {"functions": (13, 0), "kernels": (22, 13), "launched": (0, 0)},
    "ops": {"functions": (13, 0), "kernels": (22, 13), "launched": (18, 28)},
}
"""Kernels -> what is counted -> (most in a layer's forward, most in its backward)."""


@pytest.mark.parametrize("kernels", LIMITS)
def test_a_layer_is_made_of_no_more_operators_than_before(kernels):
    """Calls and launched operators of a layer's forward and backward are no more than LIMITS, by `host` and `ops`."""
    counts = counts_of_a_layer(["--kernels", kernels])
    launched = counts["launched"]
    counts["launched"] = {name: sum(launches.values()) for name, launches in launched.items()}
    grown = {
        f"{what} of the {name} pass": f"{count}, were {limit}"
        for what, limits in LIMITS[kernels].items()
        for (name, count), limit in zip(counts[what].items(), limits, strict=True)
        if count > limit
    }
    assert not grown
    if kernels == "ops":  # Checks the form of the log: products of qkv, projection and the two linears of the MLP.
        assert (launched["forward"]["MatMul"], launched["backward"]["MatMul"]) == (4, 8)
