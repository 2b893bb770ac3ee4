"""Lightning attention (MiniMax-01, 2025): linear attention whose states decay by a constant of each head and layer.

n heads, d their size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from parallel_core.attention.recurrence import RecurrenceForm
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import NormOfAllHeads
from parallel_core.blocks.recurrence import Recurrence, RecurrentMixer, exchanged
from parallel_core.config import ModelConfig
from parallel_core.messages import Message
from parallel_core.operations import Operation, elementwise

NORM_EPSILON = 1e-6
"""Epsilon of the norm over all heads, whatever that of other norms is (as in MiniMax's files and in `transformers`)."""


def log_decays(heads: int, layer: int, layers: int) -> tuple[float, ...]:
    """For each of n `heads` the logarithm of its state's decay by a token: -2^(-8 i / n), i = 1 .. n, times a share
    (1 - layer / (layers - 1 + 1e-5) + 1e-5) that falls from about 1 in the first of several layers to nearly 0 in the
    last (`transformers`' MiniMax). layer: number of the layer, from 0, of `layers`."""
    share = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return tuple(-(2.0 ** (-8.0 * i / heads)) * share for i in range(1, heads + 1))


@dataclass(frozen=True)
class LightningAttention(RecurrentMixer):
    """Lightning attention: in_proj -> [q; k; v | gate]; silu of [q; k; v] -> recurrence -> norm over all heads -> times
    sigmoid(gate) -> out_proj. There are no positions, and the recurrence has no scale. log_decays: one of each head."""

    in_proj: Linear
    recurrence: Recurrence
    norm: NormOfAllHeads
    out_proj: Linear
    log_decays: tuple[float, ...]
    """The logarithm of each head's decay by a token [n]."""

    inside: ClassVar[tuple[str, ...]] = ("activation", "recurrence")

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "LightningAttention":
        """The mixer of the configuration's layer with this global number, from 0."""
        heads, size = config.num_attention_heads, config.kv_channels
        inner = heads * size
        into = Linear.column(config, config.hidden_size, 4 * inner, bias=False)
        return cls(
            replace(into, widths=(inner,) * 4),
            Recurrence(heads, heads, size, size, RecurrenceForm(), rated=False),
            NormOfAllHeads("RMSNorm", inner, config.params_dtype, epsilon=NORM_EPSILON),
            Linear.row(config, inner, bias=False),
            log_decays(heads, min(number, config.num_layers - 1), config.num_layers),
        )

    @property
    def mixed(self) -> tuple[int, ...]:
        return self.in_proj.widths[:3]

    def _rows_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of a rank's queries, keys and values."""
        return 3 * self.out_proj.input_bytes(micro_batch)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        yield from super().operations(micro_batch)
        output, rows = self.out_proj.input_bytes(micro_batch), self._rows_bytes(micro_batch)
        yield elementwise(2 * rows, 3 * rows).within("activation")
        yield elementwise(3 * output, 5 * output).within("gate")

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of its parts, and with context parallelism the exchange of queries, keys, values and output;
        gates stay with their tokens."""
        yield from super(RecurrentMixer, self).messages(micro_batch)
        yield from exchanged(micro_batch, sum(self.mixed), self.out_proj.input_size)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep, under "activation" those of queries, keys and
        values before silu, and under "gate" those of the two operands of the gate."""
        rows, output = self._rows_bytes(micro_batch), self.out_proj.input_bytes(micro_batch)
        return {**super().kept_bytes(micro_batch), "activation": rows, "gate": 2 * output}
