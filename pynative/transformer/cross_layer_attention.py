"""Attention whose keys and values neighbouring layers share ("Cross-Layer Attention", Brandon et al., 2024).

s sequence, b batch, n heads, g key/value groups, d head size, t tensor-parallel size; g/t and n/t as in attention.py.
"""

import enum
from dataclasses import dataclass
from typing import Any

from mindspore import Tensor

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.tensor_parallel.recompute import NOTHING, run_part
from pynative.transformer.attention import ParallelAttention


@dataclass
class SharedKeys:
    """Keys and values [s, b, g/t, d], before norm and rotation, that a layer leaves for the next one; None: none are
    left."""

    key: Tensor | None = None
    value: Tensor | None = None


class CrossLayerAttention(ParallelAttention):
    """Attention that computes keys and values, which layers after it may use, or uses those of a layer before it."""

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        attn_mask_type: enum.Enum,
        block: blocks.CrossLayerAttention,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__(config, layer_number, attn_mask_type, block, recomputed)
        self.makes_keys, self.serves_next = block.makes_keys, block.serves_next

    def heads_of(self, hidden_states: Tensor, *shared: Any) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(Queries [s, b, n/t, d], gates or None, keys, values [s, b, g/t, d]); shared: one `SharedKeys`, from which a
        layer that makes no keys takes them, and in which a layer that serves the next one leaves them."""
        (keys,) = shared
        if self.makes_keys:
            query, gate, key, value = super().heads_of(hidden_states)
        else:
            rows, _ = run_part(self, "linear_qkv", self.linear_qkv, hidden_states)
            query, gate = kernels.as_heads(rows, self.local_groups * self.heads_per_group), None
            key, value, keys.key, keys.value = keys.key, keys.value, None, None
        if self.serves_next:
            (key, keys.key), (value, keys.value) = kernels.fork(key), kernels.fork(value)
        return query, gate, key, value
