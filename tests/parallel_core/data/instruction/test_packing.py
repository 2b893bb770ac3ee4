"""Conversations that share a sample."""

import pytest

from parallel_core.data.instruction.packing import best_fit


def test_a_sample_longer_than_a_pack_is_refused():
    """Packs of 5 tokens take samples of 5 tokens, but none of 6, which is a ValueError that names both lengths."""
    assert best_fit([5, 2, 3], 5) == [[0], [2, 1]]
    with pytest.raises(ValueError, match=r"6 tokens .* pack of 5"):
        best_fit([5, 6], 5)
