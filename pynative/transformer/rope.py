"""Rotary position embedding (Su et al., "RoFormer", 2021)."""

from collections.abc import Callable
from functools import partial

import mindspore as ms
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
        self.inverse_frequency = scaling(inverse) if scaling else inverse
        self._tables: dict[tuple[Ranges, str], tuple[Tensor, Tensor]] = {}

    def __call__(self, positions: Ranges, dtype: str = "float32") -> tuple[Tensor, Tensor]:
        """cos and sin, each [s, r], of the s positions."""
        key = (positions, dtype)
        if key not in self._tables:
            numbers = np.concatenate([np.arange(run.start, run.stop, dtype=np.float32) for run in positions])
            angles = np.outer(numbers * np.float32(self.position_scale), self.inverse_frequency).astype(np.float32)
            doubled = np.repeat(angles, 2, axis=1) if self.interleaved else np.concatenate([angles, angles], axis=1)
            kind = getattr(ms, dtype)
            self._tables[key] = (Tensor(np.cos(doubled)).astype(kind), Tensor(np.sin(doubled)).astype(kind))
        return self._tables[key]


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
