"""Rotary position embedding (Su et al., "RoFormer", 2021): frequencies, and the angles of positions.

d head size, r the part of it that rotates, s positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallel_core.attention.rope_scaling import stretched
from parallel_core.config import ModelConfig
from parallel_core.context import Ranges
from parallel_core.numerics.dtypes import Array


def inverse_frequencies(head_size: int, percent: float = 1.0, base: float = 10000.0) -> Array:
    """base^(-2i/r) for i < r/2, r = d x percent: radians a position, float32 [r/2]."""
    width = int(head_size * percent)
    return 1.0 / np.float32(base) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))


@dataclass(frozen=True)
class Rotary:
    """A model's rotary embedding: position p rotates pair i of each head by p x position_scale x frequency i."""

    inverse_frequencies: tuple[float, ...]
    """Radians a position, float32 numbers [r/2]."""
    position_scale: float = 1.0
    """Positions are multiplied by it ("position interpolation", Chen et al., 2023)."""
    interleaved: bool = False
    """Neighbours (2i, 2i+1) form a pair, instead of (i, i + r/2)."""
    magnitude: float = 1.0
    """Cosines and sines are multiplied by it."""

    @classmethod
    def of(cls, config: ModelConfig) -> Rotary | None:
        """The configuration's rotary embedding, if it has one."""
        if not config.use_rotary_embedding:
            return None
        return cls.of_width(config, config.kv_channels, config.rotary_interleaved)

    @classmethod
    def of_latent_attention(cls, config: ModelConfig) -> Rotary:
        """That of the part of queries and keys that rotates. Neighbours are a pair (DeepSeek-V2, 2024)."""
        return cls.of_width(config, config.multi_latent_attention.qk_pos_emb_head_dim, interleaved=True)

    @classmethod
    def of_width(cls, config: ModelConfig, width: int, interleaved: bool) -> Rotary:
        """That of heads of which `width` channels may rotate."""
        plain = inverse_frequencies(width, config.rotating_share, config.rotary_base)
        frequencies, magnitude = stretched(plain, config)
        scale = 1.0 / (config.rotary_seq_len_interpolation_factor or 1.0)
        return cls(tuple(frequencies.tolist()), scale, interleaved, magnitude)

    def tables(self, positions: Ranges) -> tuple[Array, Array]:
        """Cosine and sine of the angles of these positions, float32 [s, r] each."""
        numbers = np.concatenate([np.arange(run.start, run.stop, dtype=np.float32) for run in positions])
        frequencies = np.array(self.inverse_frequencies, np.float32)
        angles = np.outer(numbers * np.float32(self.position_scale), frequencies).astype(np.float32)
        both = np.repeat(angles, 2, axis=1) if self.interleaved else np.concatenate([angles, angles], axis=1)
        return np.cos(both) * np.float32(self.magnitude), np.sin(both) * np.float32(self.magnitude)
