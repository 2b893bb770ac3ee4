"""Gated delta net (Yang et al., "Gated Delta Networks", 2024), heads cut over ranks.

m heads of queries and keys, d their size; n heads of values, e their size; n a multiple of m.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from parallel_core.attention.recurrence import RecurrenceForm
from parallel_core.blocks.block import ParameterSpec
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.recurrence import Recurrence, RecurrentMixer, ShortConvolution, shared_bytes
from parallel_core.config import ModelConfig
from parallel_core.initial_values import AnyInitial, Constant, Uniform
from parallel_core.operations import Operation, elementwise


@dataclass(frozen=True)
class GatedDeltaNet(RecurrentMixer):
    """The gated delta net: in_proj -> [q; k; v | z | b | a]; [q; k; v] -> conv1d; decays from a and rates from b ->
    recurrence -> out_norm of each head -> times silu(z) -> out_proj."""

    in_proj: Linear
    conv1d: ShortConvolution
    recurrence: Recurrence
    out_norm: Norm
    out_proj: Linear

    inside: ClassVar[tuple[str, ...]] = ("conv1d", "gates", "recurrence", "out_norm", "gate")

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "GatedDeltaNet":
        """The mixer of any of the configuration's layers (number: ignored). The norm's weight is not stored minus one,
        whatever the other norms' are, as in HuggingFace's files."""
        sizes, dtype = config.linear_attention, config.params_dtype
        keys, heads = sizes.linear_num_key_heads, sizes.linear_num_value_heads
        key_size, value_size = sizes.linear_key_head_dim, sizes.linear_value_head_dim
        mixed = (keys * key_size, keys * key_size, heads * value_size)
        widths = (*mixed, heads * value_size, heads, heads)
        form = RecurrenceForm(key_size**-0.5, delta=True, unit=True)
        norm = replace(Norm.of_heads(config, heads), size=value_size, zero_centered=False, role=None)
        into = Linear.column(config, config.hidden_size, sum(widths), bias=False)
        return cls(
            replace(into, widths=widths),
            ShortConvolution(mixed, sizes.linear_conv_kernel_dim, dtype),
            Recurrence(keys, heads, key_size, value_size, form),
            norm,
            Linear.row(config, heads * value_size, bias=False),
        )

    def parameters(self) -> dict[str, ParameterSpec]:
        """Its parts' parameters, and for each value head dt_bias, at first 1, and A_log, at first the logarithm of a
        random number from 1 to 16: a token's decay is exp(-exp(A_log) softplus(a + dt_bias)), a from in_proj."""
        return {**self._of_heads(), **super().parameters()}

    def _of_heads(self) -> dict[str, ParameterSpec]:
        initial: dict[str, AnyInitial] = {"dt_bias": Constant(1.0), "A_log": Uniform(1.0, 16.0, "log")}
        return self.by_head(initial)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        yield from super().operations(micro_batch)
        output, rows = self.out_proj.input_bytes(micro_batch), self._rows_bytes(micro_batch)
        yield elementwise(2 * rows, 2 * rows, 2).within("gates")
        yield elementwise(3 * output, 5 * output).within("gate")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep, and the operands of the gates before
        ("gates") and behind ("gate") the recurrence."""
        heads, output = self.recurrence.heads // micro_batch.tensor, self.out_proj.input_bytes(micro_batch)
        gates = 2 * micro_batch.tokens * heads * micro_batch.item_size + shared_bytes(self._of_heads(), micro_batch)
        return {**super().kept_bytes(micro_batch), "gates": gates, "gate": 2 * output}
