"""Rotary position embedding (Su et al., "RoFormer", 2021): frequencies, and the angles of positions.

d head size, r the part of it that rotates, s positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parallel_core.context import Ranges

if TYPE_CHECKING:
    from parallel_core.config import ModelConfig
    from parallel_core.config.families import RopeScalingConfig

LLAMA3_ORIGINAL_LENGTH = 8192


def inverse_frequencies(head_size: int, percent: float = 1.0, base: float = 10000.0) -> np.ndarray:
    """base^(-2i/r) for i < r/2, r = d x percent: radians a position, float32 [r/2]."""
    width = int(head_size * percent)
    return 1.0 / np.float32(base) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))


def llama3(inverse_frequency: np.ndarray, scaling: RopeScalingConfig) -> np.ndarray:
    """Llama 3.1's: long wavelengths are stretched by the factor, short ones left, those between blended.

    inverse_frequency [r/2], radians a position. "The Llama 3 Herd of Models" (2024), by Megatron's constants.
    """
    length = scaling.original_max_position_embeddings or LLAMA3_ORIGINAL_LENGTH
    turns = length * inverse_frequency / (2 * math.pi)  # over the original length: length / wavelength
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(share_kept, 0.0, 1.0)
    return (inverse_frequency * (kept + (1.0 - kept) / scaling.factor)).astype(inverse_frequency.dtype)


@dataclass(frozen=True)
class Rotary:
    """A model's rotary embedding: position p rotates pair i of each head by p x position_scale x frequency i."""

    inverse_frequencies: tuple[float, ...]
    """Radians a position, float32 numbers [r/2]."""
    position_scale: float = 1.0
    """Positions are multiplied by it ("position interpolation", Chen et al., 2023)."""
    interleaved: bool = False
    """Neighbours (2i, 2i+1) form a pair, instead of (i, i + r/2)."""

    @classmethod
    def of(cls, config: ModelConfig) -> Rotary | None:
        """The configuration's rotary embedding, if it has one."""
        if config.position_embedding_type != "rope" and not config.use_rotary_embedding:
            return None
        frequencies = inverse_frequencies(config.kv_channels, config.rotary_percent, config.rotary_base)
        if config.rope_scaling.type == "llama3":
            frequencies = llama3(frequencies, config.rope_scaling)
        scale = 1.0 / (config.rotary_seq_len_interpolation_factor or 1.0)
        return cls(tuple(frequencies.tolist()), scale, config.rotary_interleaved)

    def tables(self, positions: Ranges) -> tuple[np.ndarray, np.ndarray]:
        """Cosine and sine of the angles of these positions, float32 [s, r] each."""
        numbers = np.concatenate([np.arange(run.start, run.stop, dtype=np.float32) for run in positions])
        frequencies = np.array(self.inverse_frequencies, np.float32)
        angles = np.outer(numbers * np.float32(self.position_scale), frequencies).astype(np.float32)
        both = np.repeat(angles, 2, axis=1) if self.interleaved else np.concatenate([angles, angles], axis=1)
        return np.cos(both), np.sin(both)
