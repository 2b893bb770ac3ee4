"""One transformer layer: attention and feed-forward, each normed before and added to the residual stream."""

import enum

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from pynative import kernels
from pynative.moe.moe_layer import MoELayer
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.mlp import ParallelMLP
from pynative.tensor_parallel.random import get_rng_tracer
from pynative.transformer.attention import ParallelAttention
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.multi_latent_attention import MLASelfAttention
from pynative.transformer.norm import norm_of

AFTER_ATTENTION, AFTER_MLP = 1, 2
"""Places of the hidden dropout masks among a layer's dropout masks."""


ATTENTIONS = {blocks.Attention: ParallelAttention, blocks.LatentAttention: MLASelfAttention}
"""Block -> its cell."""


class ParallelTransformerLayer(nn.Cell):
    """x + attention(norm(x)), then x + mlp(norm(x)).

    With sandwich norm each result is normed once more before it is added. `layer_number` is global and starts at 1;
    `block` says what the layer has, by default what the configuration's layer of that number has.
    """

    observable = True

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        self_attn_mask_type: enum.Enum = AttnMaskType.causal,
        block: blocks.Layer | None = None,
    ) -> None:
        super().__init__()
        self.boundary = Boundary.of(config)
        self.layer_number = layer_number
        self.hidden_dropout = config.hidden_dropout_rate
        self.residual_scale = config.scales.residual
        self.residual_after_norm = config.apply_residual_connection_post_norm
        block = blocks.Layer.of(config, layer_number - 1) if block is None else block
        self.input_layernorm = norm_of(block.input_layernorm, config)
        attention = ATTENTIONS[type(block.self_attention)]
        self.self_attention = attention(config, layer_number, self_attn_mask_type, block.self_attention)
        self.pre_mlp_layernorm = norm_of(block.pre_mlp_layernorm, config)
        self.mlp = _feed_forward(config, layer_number, block.mlp)
        self.post_attention_layernorm = norm_of(block.post_attention_layernorm, config)
        self.post_mlp_layernorm = norm_of(block.post_mlp_layernorm, config)

    def _part(self, hidden_states: Tensor, norm: nn.Cell) -> tuple[Tensor, Tensor]:
        """What goes into the branch, and what by it."""
        if self.residual_after_norm:
            return kernels.fork(norm(hidden_states))
        branch, residual = kernels.fork(hidden_states)
        return norm(branch), residual

    def _join(self, result: tuple[Tensor, Tensor | None], residual: Tensor, norm: nn.Cell | None, place: int) -> Tensor:
        """residual + dropout(scale x norm(output + bias))."""
        output, bias = result
        if norm is not None:
            output, bias = norm(output if bias is None else kernels.bias_dropout_add(output, bias)), None
        if self.residual_scale != 1.0:
            output, bias = (None if x is None else kernels.scale(x, self.residual_scale) for x in (output, bias))
        if not (self.training and self.hidden_dropout):
            return kernels.bias_dropout_add(output, bias, residual)
        key, rows = get_rng_tracer().key(self.layer_number, place), self.boundary.positions(residual.shape[0])
        return kernels.bias_dropout_add(output, bias, residual, self.hidden_dropout, key, rows)

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
    ) -> Tensor:
        """[s, b, h] -> [s, b, h]; with sequence parallelism s is the length of this rank's shard. The others: see
        `CoreAttention`."""
        normed, residual = self._part(hidden_states, self.input_layernorm)
        attended = self.self_attention(normed, attention_mask, document_starts)
        hidden_states = self._join(attended, residual, self.post_attention_layernorm, AFTER_ATTENTION)
        normed, residual = self._part(hidden_states, self.pre_mlp_layernorm)
        return self._join(self.mlp(normed), residual, self.post_mlp_layernorm, AFTER_MLP)


def _feed_forward(config: ModelConfig, layer_number: int, block: blocks.MLP | blocks.MoELayer) -> nn.Cell:
    return ParallelMLP(config, block) if isinstance(block, blocks.MLP) else MoELayer(config, block, layer_number)
