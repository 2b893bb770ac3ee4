"""Rotary position embedding as tensors; frequencies and angles are computed in `parallel_core.attention.rotary`."""

from functools import lru_cache

from mindspore import Tensor

from parallel_core.attention.rotary import Rotary, inverse_frequencies
from parallel_core.context import Ranges
from pynative import key_value_cache


class RotaryEmbedding:
    """Cosines and sines of the angles position x base^(-2i/r), i < r/2, for the first r channels of each head.

    Args:
        kv_channels: head size d.
        rotary_percent: share of the head that rotates: r is d x rotary_percent rounded down, and must be even.
        rotary_interleaved: neighbours (2i, 2i+1) form a pair, instead of (i, i + r/2).
        seq_len_interpolation_factor: positions are divided by it ("position interpolation", Chen et al., 2023); None:
            by 1.
        rotary_base: base of the frequencies.
    """

    def __init__(
        self,
        kv_channels: int,
        rotary_percent: float = 1.0,
        rotary_interleaved: bool = False,
        seq_len_interpolation_factor: float | None = None,
        rotary_base: float = 10000,
    ) -> None:
        frequencies = inverse_frequencies(kv_channels, rotary_percent, rotary_base)
        scale = 1.0 / (seq_len_interpolation_factor or 1.0)
        self.rotary = Rotary(tuple(frequencies.tolist()), scale, rotary_interleaved)

    def __call__(self, positions: Ranges) -> tuple[Tensor, Tensor]:
        """(cos, sin) of the s positions, each [s, r] float32."""
        return angle_tables(self.rotary, positions)


@lru_cache(maxsize=8)
def angle_tables(rotary: Rotary, positions: Ranges) -> tuple[Tensor, Tensor]:
    """(cos, sin), each float32 [s, r], of a rotary embedding at these s positions, times its magnitude. The 8 pairs
    that were used last are kept and returned again."""
    cos, sin = rotary.tables(positions)
    return Tensor.from_numpy(cos), Tensor.from_numpy(sin)


def angles(rotary: Rotary, positions: Ranges) -> tuple[Tensor, Tensor]:
    """(cos, sin) for a forward's tokens: [s, r] at these positions. In generation with a cache,
    in a forward after the first: of the one new token of each text, [1, b, r] at the cache's positions; `positions` is
    not read. In generation the frequencies are those for the longest text's length (`Rotary.of_text`), for which
    `positions[-1].stop` is taken without a cache."""
    cache = key_value_cache.current()
    if cache is not None and cache.continues:
        return cache.angles(rotary)
    if key_value_cache.is_generating():
        longest = positions[-1].stop if cache is None else int(cache.lengths.max())
        rotary = rotary.of_text(longest)
    return angle_tables(rotary, positions)
