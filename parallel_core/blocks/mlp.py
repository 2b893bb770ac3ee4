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
from parallel_core.operations import ACTIVATION, Operation, elementwise
from parallel_core.recompute.parts import Again, Part
from parallel_core.sharding import share

if TYPE_CHECKING:
    from typing_extensions import Self

    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class BiasActivation(Block):
    """The bias and activation between the two linears of a feed-forward block: activation(x + bias) of x, the first
    one's f features (gated: 2 f, as [gate; up]). operator: name of the activation's kernel; features: those of x, over
    all ranks."""

    operator: str
    """Name of the activation among the kernels' operators."""
    features: int
    """The number of features of its input, f or 2 f, over all ranks."""
    gated: bool = False
    """Whether the output has half as many features."""

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """One pass that reads its input and writes its output; the backward reads the input and the output's gradient,
        and writes the input's gradient."""
        before = self.kept_bytes(micro_batch)[""]
        after = before // (1 + self.gated)
        yield elementwise(before + after, 2 * before + after, named=ACTIVATION)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        parts = 1 + self.gated
        width = parts * share(self.features // parts, micro_batch.tensor)
        return {"": micro_batch.tokens * width * micro_batch.item_size}


@dataclass(frozen=True)
class MLP(Sublayer):
    """The feed-forward block, linear_fc2(activation(linear_fc1(x)))."""

    linear_fc1: Linear
    activation: BiasActivation
    linear_fc2: Linear

    collectives: ClassVar[tuple[str, ...]] = ("linear_fc1", "linear_fc2")

    @property
    def first_linears(self) -> tuple[str, ...]:
        return ("linear_fc1",)

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed: the whole; the first linear together with the activation, which would keep
        that linear's output if it did not run again; and the activation's output alone."""
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
        """The configuration's feed-forward block. size: its width f; None: that of dense layers."""
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
