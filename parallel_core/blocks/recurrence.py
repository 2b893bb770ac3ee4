"""Blocks that mixers with a state share: the recurrence over a state, and the short convolution before it.

s sequence, b batch, t tensor-parallel, c context-parallel; d size of a key, e of a value, n heads of values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from parallel_core.attention.recurrence import CHUNK, RecurrenceForm, segments
from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.initial_values import AnyInitial, Uniform
from parallel_core.messages import Message, message
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.operations import PRODUCTS, Operation, Work, elementwise
from parallel_core.recompute.parts import Part
from parallel_core.sharding import Cut, ShardSpec


def shared_bytes(parameters: Mapping[str, ParameterSpec], micro_batch: MicroBatch) -> int:
    """Bytes of a rank's share of the parameters by feature, where context parallelism gives it a share of the
    features."""
    ranks = micro_batch.tensor * micro_batch.context.size
    sizes = (prod(spec.shard.shape) // ranks * DTYPES[spec.dtype].bytes for spec in parameters.values())
    return sum(sizes) if micro_batch.context.size > 1 else 0


@dataclass(frozen=True)
class ShortConvolution(Block):
    """A causal convolution of each channel by itself, and its silu."""

    widths: tuple[int, ...]
    """Channels of each fused part, which is cut on its own."""
    taps: int
    """Tokens that it reaches over."""
    dtype: str
    bias: bool = False

    @property
    def channels(self) -> int:
        """All of them."""
        return sum(self.widths)

    def parameters(self) -> dict[str, ParameterSpec]:
        """The first values are those of torch's Conv1d."""
        bound, cuts = self.taps**-0.5, (Cut(0, widths=self.widths),)
        shapes = {"weight": (self.channels, 1, self.taps)} | ({"bias": (self.channels,)} if self.bias else {})
        return {
            name: ParameterSpec(ShardSpec(shape=shape, cuts=cuts), Uniform(-bound, bound), self.dtype)
            for name, shape in shapes.items()
        }

    def _bytes(self, micro_batch: MicroBatch) -> int:
        return micro_batch.tokens * (self.channels // micro_batch.tensor) * micro_batch.item_size

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        return 2.0 * tokens * self.channels * self.taps

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        size = self._bytes(micro_batch)
        yield elementwise(2 * size, 5 * size, 2)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Its input; and with context parallelism the rank's share of the parameters."""
        return {"": self._bytes(micro_batch) + shared_bytes(self.parameters(), micro_batch)}


@dataclass(frozen=True)
class Recurrence(Block):
    """A state [d, e] of each value head, which tokens change and read."""

    keys: int
    """Heads of queries and keys."""
    heads: int
    """Heads of values."""
    key_size: int
    value_size: int
    form: RecurrenceForm
    rated: bool = True
    """Whether each token has a rate of its own beside its decay."""

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of the recurrence as it is written: a state is decayed, read, written and, by a delta rule, read for
        the key (Megatron's count)."""
        return 2.0 * tokens * self.heads * self.key_size * self.value_size * (3 + self.form.delta)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of the recurrence in chunks: scores within each, and products with states."""
        scores = CHUNK * (self.keys * self.key_size * (1 + self.form.delta) + self.heads * self.value_size)
        scores += self.form.delta * CHUNK * self.heads * self.value_size
        states = (2 + self.form.delta) * self.heads * self.key_size * self.value_size
        flops = 2.0 * micro_batch.tokens * (scores + states) / micro_batch.tensor
        moved = 2.0 * sum(self.kept_bytes(micro_batch).values())
        yield Operation(PRODUCTS, Work(flops, moved, 1), Work(2.5 * flops, 2 * moved, 2))

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Queries, keys and values, in float32 decays and rates, and the states between segments. A rank has the heads
        of its share of c t ranks, of whole sequences."""
        tensor, members = micro_batch.tensor, micro_batch.context.size
        width = (2 * self.keys * self.key_size + self.heads * self.value_size) // tensor * micro_batch.item_size
        width += self.heads // tensor * (1 + self.rated) * FLOAT32
        states = micro_batch.batch * segments(micro_batch.seq_length) * (self.heads // (tensor * members))
        return {"": micro_batch.tokens * width + states * self.key_size * self.value_size * FLOAT32}


def exchanged(micro_batch: MicroBatch, width: int, back: int) -> Iterator[Message]:
    """The messages of an exchange under context parallelism: features of a rank's tokens for fewer features of whole
    sequences, `width` of a token there and `back` on the way back, and their gradients (as Ulysses, Jacobs et al.,
    2023)."""
    members = micro_batch.context.size
    for what, features in (("exchange", width), ("exchange_back", back)):
        size = micro_batch.tokens * (features // micro_batch.tensor) * micro_batch.item_size
        for backward in (False, True):
            to_others = size * (members - 1) // members
            for one in message("cp", "all_to_all", to_others, members, backward=backward):
                yield one.within(what)


class RecurrentMixer(Sublayer):
    """A mixer that keeps a state: a linear, a short convolution, a recurrence with what stands around it, a linear."""

    in_proj: Linear
    conv1d: ShortConvolution
    recurrence: Recurrence
    out_proj: Linear

    collectives: ClassVar[tuple[str, ...]] = ("in_proj", "out_proj")
    inside: ClassVar[tuple[str, ...]]
    """Names of what lies between the two linears, in order."""

    @property
    def mixed(self) -> tuple[int, ...]:
        """Widths of the queries, keys and values that the first linear gives, as they lie there."""
        return self.conv1d.widths

    @property
    def first_linears(self) -> tuple[str, ...]:
        return ("in_proj",)

    def by_head(self, initial: dict[str, AnyInitial]) -> dict[str, ParameterSpec]:
        """Parameters with a number for each head, by their initial values."""
        shard = ShardSpec(shape=(self.recurrence.heads,), cuts=(Cut(0),))
        return {name: ParameterSpec(shard, values, self.in_proj.dtype) for name, values in initial.items()}

    def parts(self) -> tuple[Part, ...]:
        whole = Part("", holders=self.first_linears, begins=True, aliases=("attention",))
        inside = Part(
            "mixing", runs=self.inside, holders=self.inside[:1], input_bytes=self._rows_bytes, flag="core_attn"
        )
        return whole, inside

    def _rows_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of in_proj's output."""
        return micro_batch.tokens * (self.in_proj.output_size // micro_batch.tensor) * micro_batch.item_size

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        yield from super().messages(micro_batch)
        yield from exchanged(micro_batch, self.in_proj.output_size, self.out_proj.input_size)
