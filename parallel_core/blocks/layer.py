"""One transformer layer: attention and feed-forward, each normed before and added to the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallel_core.blocks.attention import Attention
from parallel_core.blocks.block import Block
from parallel_core.blocks.latent_attention import LatentAttention
from parallel_core.blocks.mlp import MLP
from parallel_core.blocks.moe_layer import MoELayer
from parallel_core.blocks.norm import Norm

if TYPE_CHECKING:
    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class Layer(Block):
    """x + attention(norm(x)), then x + mlp(norm(x)); with sandwich norm each result is normed before it is added."""

    input_layernorm: Norm
    self_attention: Attention | LatentAttention
    pre_mlp_layernorm: Norm
    mlp: MLP | MoELayer
    post_attention_layernorm: Norm | None = None
    post_mlp_layernorm: Norm | None = None

    @property
    def hidden_size(self) -> int:
        """Of the residual stream."""
        return self.input_layernorm.size

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> Layer:
        """The configuration's layer of this global number, 0-based; layers need not be alike. Those that come after the
        decoder's are as its last."""
        attention = LatentAttention if config.multi_latent_attention.enabled else Attention
        number = min(number, config.num_layers - 1)
        norm, self_attention, mlp = Norm.of(config), attention.of(config, number), _feed_forward(config, number)
        if not config.use_sandwich_norm:
            return cls(norm, self_attention, norm, mlp)
        after_attention = Norm.of_branch_output(config, config.attn_post_norm_scale)
        after_mlp = Norm.of_branch_output(config, config.ffn_post_norm_scale)
        return cls(norm, self_attention, norm, mlp, after_attention, after_mlp)


def _feed_forward(config: ModelConfig, number: int) -> MLP | MoELayer:
    return MoELayer.of(config) if config.moe_config.has_experts(number) else MLP.of(config)
