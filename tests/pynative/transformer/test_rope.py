"""Tables of cosines and sines of rotary embeddings."""

import numpy as np

from pynative.transformer.rope import RotaryEmbedding

POSITIONS = (range(2, 4), range(8, 10))


def test_layers_share_their_tables():
    """Embeddings of several layers share one table, as 32 layers of a long sequence would hold gigabytes of equal
    numbers."""
    cos, sin = RotaryEmbedding(8)(POSITIONS)
    again = RotaryEmbedding(8)(POSITIONS)
    assert again[0] is cos and again[1] is sin
    assert RotaryEmbedding(8, rotary_base=100.0)(POSITIONS)[0] is not cos


def test_the_angles_are_those_of_the_positions():
    """Angles are position x base^(-2i/r), each twice: for halves of the head or for neighbours, r being the rotated
    part; interpolation divides positions."""
    angles = np.outer([2, 3, 8, 9], 100.0 ** -np.array([0, 0.5]))
    cos, sin = RotaryEmbedding(8, rotary_percent=0.5, rotary_base=100.0)(POSITIONS)
    np.testing.assert_allclose(cos.asnumpy(), np.cos(np.concatenate([angles, angles], 1)), rtol=1e-5)
    np.testing.assert_allclose(sin.asnumpy(), np.sin(np.concatenate([angles, angles], 1)), rtol=1e-5)
    neighbours = RotaryEmbedding(4, rotary_interleaved=True, rotary_base=100.0, seq_len_interpolation_factor=2.0)
    np.testing.assert_allclose(neighbours(POSITIONS)[0].asnumpy(), np.cos(np.repeat(angles / 2, 2, 1)), rtol=1e-5)
