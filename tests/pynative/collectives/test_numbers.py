"""Sums over ranks of a few Python numbers: losses and token counts."""

import numpy as np

from tests.support.distributed import run


def summed(backend, values: list[float]) -> list[float]:
    from pynative.collectives.numbers import sum_over_group

    return sum_over_group([value * (backend.rank + 1) for value in values], backend.world)


def test_counts_are_exact_beyond_float32():
    """Counts of tokens beyond 2^24 are summed exactly; losses as exactly as in float32, and NaN stays NaN."""
    counts, loss = [2**24 + 1, 2**33 + 1, 0, 4095, 4096], 1234.5678
    losses = [loss, -loss, 1e-4, -1e-4]
    found, others = run(2, summed, [*counts, *losses, float("nan"), float("inf")])
    assert found[:5] == [3 * count for count in counts]
    np.testing.assert_allclose(found[5:9], [3 * one for one in losses], rtol=1e-7)
    assert np.isnan(found[9]) and found[10] == np.inf
    np.testing.assert_array_equal(found, others)
