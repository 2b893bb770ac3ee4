"""Attention and a state space that read the same input (Falcon-H1, 2025), in place of attention alone."""

import enum
from typing import Any

from mindspore import Tensor

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels
from pynative.tensor_parallel.made_again import fork_made_again
from pynative.tensor_parallel.recompute import NOTHING
from pynative.transformer.attention import ParallelAttention
from pynative.transformer.mamba import MambaMixer


class AttentionBesideStateSpace(ParallelAttention):
    """A mixer of attention and Mamba-2 on the same input: weights[0] x attention(x) + weights[1] x mixer(x), the
    weights two numbers of the configuration."""

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        attn_mask_type: enum.Enum,
        block: blocks.AttentionBesideStateSpace,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__(config, layer_number, attn_mask_type, block, recomputed)
        self.mixer = MambaMixer(config, layer_number, block.mixer, recomputed.within("mixer"))
        self.weights = block.weights

    def construct(self, hidden_states: Tensor, *masking: Any) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, None: no bias is left to be added).
        masking: attention mask and document starts; raises ValueError for one that is not None."""
        for_attention, for_mixer = fork_made_again(hidden_states)
        attended, bias = super().construct(for_attention, *masking)
        mixed, _ = self.mixer(for_mixer, *masking)
        if bias is not None:
            attended = kernels.bias_dropout_add(attended, bias)
        attended, mixed = (
            x if weight == 1.0 else kernels.scale(x, weight)
            for x, weight in zip((attended, mixed), self.weights, strict=True)
        )
        return kernels.bias_dropout_add(mixed, None, attended), None
