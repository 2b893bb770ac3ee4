"""The feed-forward half of a layer: h -> f -> h with an activation between, or a gated one (Shazeer, 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from parallel_core.blocks.block import Block
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.numerics.activations import ACTIVATIONS, adjusted
from parallel_core.operations import Operation, elementwise
from parallel_core.recompute.parts import Again, Part
from parallel_core.sharding import share

if TYPE_CHECKING:
    from typing_extensions import Self

    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class BiasActivation(Block):
    """activation(x + bias) of the f (gated: 2 f, as [gate; up]) features of the first linear."""

    operator: str
    """The activation's name among the operators."""
    features: int
    """Features of its input."""
    gated: bool = False
    """Whether the result has half as many."""

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """Reads its input and writes its result; backward reads both and their gradient's, and writes one."""
        before = self.kept_bytes(micro_batch)[""]
        after = before // (1 + self.gated)
        yield elementwise(before + after, 2 * before + after)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        parts = 1 + self.gated
        width = parts * share(self.features // parts, micro_batch.tensor)
        return {"": micro_batch.tokens * width * micro_batch.item_size}


@dataclass(frozen=True)
class MLP(Sublayer):
    """linear_fc2(activation(linear_fc1(x)))."""

    linear_fc1: Linear
    activation: BiasActivation
    linear_fc2: Linear

    collectives: ClassVar[tuple[str, ...]] = ("linear_fc1", "linear_fc2")

    @property
    def first_linears(self) -> tuple[str, ...]:
        return ("linear_fc1",)

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed. The first linear's output is kept by the activation alone, so the two are
        recomputed together."""
        first, activation, second = ("linear_fc1",), "activation", ("linear_fc2",)
        of_gate, of_up = "feed_forward.w1", "feed_forward.w3"
        activations = f"{of_gate}.activation.silu", "feed_forward.mul", "mlp.activation_func.silu", "mlp.mul"
        return (
            Part("", holders=first, begins=True, flag="mlp", aliases=("feed_forward",)),
            Part(
                *first, runs=(*first, activation), holders=first, feeds=second, begins=True,
                aliases=(f"{of_gate}.matmul", f"{of_up}.matmul"),
            ),
            Part(activation, Again.OUTPUT, feeds=second, aliases=activations, unasked=True),
        )  # fmt: skip

    @classmethod
    def of(cls, config: ModelConfig, size: int | None = None) -> Self:
        """The configuration's, of the width `size`; by default its dense feed-forward block."""
        activation, size, bias = ACTIVATIONS[config.hidden_act], size or config.ffn_hidden_size, config.mlp_has_bias
        parts = 2 if activation.gated else 1
        fused = config.bias_gelu_fusion and bias
        operator = activation.operator if fused else activation.without_fusion or activation.operator
        operator = adjusted(operator, config.activation_func_clamp_value, config.glu_linear_offset, config.scales.gate)
        return cls(
            Linear.column(config, config.hidden_size, size * parts, bias=bias, parts=parts, unit=1),
            BiasActivation(operator, size * parts, activation.gated),
            Linear.row(config, size, bias=bias, unit=1),
        )
