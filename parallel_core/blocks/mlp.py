"""The feed-forward half of a layer: h -> f -> h with an activation between, or a gated one (Shazeer, 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallel_core.blocks.block import Block
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.numerics.activations import ACTIVATIONS

if TYPE_CHECKING:
    from typing import Self

    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class BiasActivation(Block):
    """activation(x + bias) of the f (gated: 2 f, as [gate; up]) features of the first linear."""

    operator: str
    """The activation's name among the operators."""
    features: int
    """Of its input."""

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        return {"": micro_batch.tokens * (self.features // micro_batch.tensor) * micro_batch.item_size}


@dataclass(frozen=True)
class MLP(Block):
    """linear_fc2(activation(linear_fc1(x)))."""

    linear_fc1: Linear
    activation: BiasActivation
    linear_fc2: Linear

    @classmethod
    def of(cls, config: ModelConfig, size: int | None = None) -> Self:
        """The configuration's, of the width `size`; by default its dense feed-forward block."""
        activation, size, bias = ACTIVATIONS[config.hidden_act], size or config.ffn_hidden_size, config.mlp_has_bias
        parts = 2 if activation.gated else 1
        fused = config.bias_gelu_fusion and bias
        operator = activation.operator if fused else activation.without_fusion or activation.operator
        return cls(
            Linear.column(config, config.hidden_size, size * parts, bias=bias, parts=parts),
            BiasActivation(operator, size * parts),
            Linear.row(config, size, bias=bias),
        )
