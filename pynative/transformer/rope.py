"""Rotary position embedding (Su et al., "RoFormer", 2021)."""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from mindspore import Tensor

from parallel_core.context import Ranges
from parallel_core.rope_scaling import llama3


class RotaryEmbedding:
    """Cosines and sines of the angles position x base^(-2i/r), for the first r = d x percent of each head.

    Args:
        kv_channels: head size d.
        rotary_percent: share of the head that turns.
        rotary_interleaved: neighbours (2i, 2i+1) form a pair, instead of (i, i + r/2).
        seq_len_interpolation_factor: positions are divided by it ("position interpolation", Chen et al., 2023).
        rotary_base: base of the frequencies.
        scaling: a change of the inverse frequencies, such as Llama 3.1's.
    """

    def __init__(
        self,
        kv_channels: int,
        rotary_percent: float = 1.0,
        rotary_interleaved: bool = False,
        seq_len_interpolation_factor: float | None = None,
        rotary_base: float = 10000,
        scaling: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        width = int(kv_channels * rotary_percent)
        self.interleaved = rotary_interleaved
        self.position_scale = 1.0 / (seq_len_interpolation_factor or 1.0)
        inverse = 1.0 / np.float32(rotary_base) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))
        frequencies = scaling(inverse) if scaling else inverse
        self.inverse_frequencies = tuple(np.asarray(frequencies, np.float32).tolist())

    def __call__(self, positions: Ranges) -> tuple[Tensor, Tensor]:
        """cos and sin, each [s, r] float32, of the s positions."""
        return _tables(positions, self.position_scale, self.inverse_frequencies, self.interleaved)


@lru_cache(maxsize=8)
def _tables(
    positions: Ranges, position_scale: float, inverse_frequencies: tuple[float, ...], interleaved: bool
) -> tuple[Tensor, Tensor]:
    """Made once for all layers, and kept for the last few lengths of sequence."""
    numbers = np.concatenate([np.arange(run.start, run.stop, dtype=np.float32) for run in positions])
    frequencies = np.array(inverse_frequencies, np.float32)
    angles = np.outer(numbers * np.float32(position_scale), frequencies).astype(np.float32)
    doubled = np.repeat(angles, 2, axis=1) if interleaved else np.concatenate([angles, angles], axis=1)
    return Tensor.from_numpy(np.cos(doubled)), Tensor.from_numpy(np.sin(doubled))


def rotary_embedding(config) -> RotaryEmbedding | None:
    """The config's rotary embedding, if it has one."""
    if config.position_embedding_type != "rope" and not config.use_rotary_embedding:
        return None
    return RotaryEmbedding(
        config.kv_channels,
        config.rotary_percent,
        config.rotary_interleaved,
        config.rotary_seq_len_interpolation_factor,
        config.rotary_base,
        partial(llama3, scaling=config.rope_scaling) if config.rope_scaling.type == "llama3" else None,
    )
