"""A state space layer: Mamba-2 ("Transformers are SSMs", Dao and Gu, 2024), heads and groups cut over ranks.

n heads, e their size; g groups of heads that share keys and queries (B and C) of size d.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log
from typing import ClassVar

from parallel_core.attention.recurrence import RecurrenceForm
from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.recurrence import Recurrence, RecurrentMixer, ShortConvolution, shared_bytes
from parallel_core.config import ModelConfig
from parallel_core.initial_values import AnyInitial, Constant, Uniform
from parallel_core.operations import NORM, Operation, elementwise
from parallel_core.sharding import Cut, ShardSpec


@dataclass(frozen=True)
class GroupedNorm(Block):
    """RMS norm of each of `groups` groups of size / groups neighbouring features by itself, with a weight [size], which
    is cut over the tensor-parallel ranks as the features are."""

    size: int
    groups: int
    dtype: str

    def parameters(self) -> dict[str, ParameterSpec]:
        return {"weight": ParameterSpec(ShardSpec(shape=(self.size,), cuts=(Cut(0),)), Constant(1.0), self.dtype)}

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        size = micro_batch.tokens * (self.size // micro_batch.tensor) * micro_batch.item_size
        yield elementwise(2 * size, 3 * size, named=NORM)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        size = micro_batch.tokens * (self.size // micro_batch.tensor) * micro_batch.item_size
        return {"": size + shared_bytes(self.parameters(), micro_batch)}


@dataclass(frozen=True)
class MambaMixer(RecurrentMixer):
    """Mamba-2's mixer: in_proj -> [z | x; B; C | dt], each times a factor; [x; B; C] -> conv1d -> recurrence with
    values x, keys B, queries C; plus D x -> times silu(z) -> norm of each group, if any -> out_proj."""

    in_proj: Linear
    conv1d: ShortConvolution
    recurrence: Recurrence
    norm: GroupedNorm | None
    out_proj: Linear
    multipliers: tuple[float, ...] | None = None
    """Factors of z, x, B, C and dt, in this order; None: 1 each."""

    inside: ClassVar[tuple[str, ...]] = ("conv1d", "gates", "recurrence", "gate", "norm")

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "MambaMixer":
        """The configuration's mixer. number: ignored, all layers have the same."""
        sizes, dtype = config.hybrid, config.params_dtype
        heads, head_size = sizes.mamba_num_heads, sizes.mamba_head_dim
        groups, state = sizes.mamba_num_groups, sizes.mamba_state_dim
        inner = heads * head_size
        mixed = (inner, groups * state, groups * state)
        widths = (inner, *mixed, heads)
        return cls(
            replace(Linear.column(config, config.hidden_size, sum(widths), bias=False), widths=widths),
            ShortConvolution(mixed, sizes.mamba_d_conv, dtype, bias=sizes.mamba_conv_bias),
            Recurrence(groups, heads, state, head_size, RecurrenceForm()),
            GroupedNorm(inner, groups, dtype) if sizes.mamba_rms_norm else None,
            Linear.row(config, inner, bias=False),
            tuple(sizes.mamba_multipliers) if sizes.mamba_multipliers else None,
        )

    def parameters(self) -> dict[str, ParameterSpec]:
        """Its parts' parameters, and three with a value for each head. First values: softplus(dt_bias), the step of a
        token with dt = 0, is drawn between 0.001 and 0.1, evenly in its logarithm; A_log is the logarithm of a number
        drawn evenly from 1 to 16; D is 1."""
        return {**self._of_heads(), **super().parameters()}

    def _of_heads(self) -> dict[str, ParameterSpec]:
        initial: dict[str, AnyInitial] = {
            "dt_bias": Uniform(log(0.001), log(0.1), "softplus^-1 exp"),
            "A_log": Uniform(1.0, 16.0, "log"),
            "D": Constant(1.0),
        }
        return self.by_head(initial)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        yield from super().operations(micro_batch)
        output, rows = self.out_proj.input_bytes(micro_batch), self._rows_bytes(micro_batch)
        yield elementwise(2 * rows, 2 * rows, 2).within("gates")
        if self.multipliers is not None:
            yield elementwise(2 * rows, 2 * rows).within("multipliers")
        yield elementwise(6 * output, 9 * output, 2).within("gate")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep; under "gates" those of the tokens' steps (dt)
        and, with context parallelism, of dt_bias, A_log and D; and under "gate" those of the two operands of the gate
        behind the recurrence."""
        heads, output = self.recurrence.heads // micro_batch.tensor, self.out_proj.input_bytes(micro_batch)
        gates = micro_batch.tokens * heads * micro_batch.item_size + shared_bytes(self._of_heads(), micro_batch)
        return {**super().kept_bytes(micro_batch), "gates": gates, "gate": 2 * output}
