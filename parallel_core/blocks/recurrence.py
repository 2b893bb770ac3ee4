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
    """Bytes of a rank's share of `parameters` (whose first axis is heads or channels) that it keeps for the backward:
    under context parallelism, where it computes whole sequences with 1/(c t) of the heads; else 0."""
    ranks = micro_batch.tensor * micro_batch.context.size
    sizes = (prod(spec.shard.shape) // ranks * DTYPES[spec.dtype].bytes for spec in parameters.values())
    return sum(sizes) if micro_batch.context.size > 1 else 0


@dataclass(frozen=True)
class ShortConvolution(Block):
    """A causal convolution of each channel by itself over `taps` tokens, followed by silu. widths: channels of each
    fused part; each part is cut over the tensor-parallel ranks on its own."""

    widths: tuple[int, ...]
    """The number of channels of each fused part; each part is cut over the tensor-parallel ranks on its own."""
    taps: int
    """The number of tokens that an output depends on, its own included."""
    dtype: str
    bias: bool = False

    @property
    def channels(self) -> int:
        """The number of channels of all parts."""
        return sum(self.widths)

    def parameters(self) -> dict[str, ParameterSpec]:
        """weight [channels, 1, taps] and with `bias` bias [channels]; first values are uniform between -1 / sqrt(taps)
        and 1 / sqrt(taps), as in torch's Conv1d."""
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
        """Bytes kept for the backward, under "": of its input, and with context parallelism of the rank's share of the
        parameters."""
        return {"": self._bytes(micro_batch) + shared_bytes(self.parameters(), micro_batch)}


@dataclass(frozen=True)
class Recurrence(Block):
    """The recurrence over a state [key_size, value_size] of each value head, which tokens change and read. keys: number
    of heads of queries and keys; heads: of values; rated: whether each token has a rate beside its decay."""

    keys: int
    """The number of heads of queries and keys."""
    heads: int
    """The number of heads of values."""
    key_size: int
    value_size: int
    form: RecurrenceForm
    rated: bool = True
    """Whether each token has a rate beside its decay."""

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of the recurrence token by token, 2 key_size value_size for each token and value head and each of
        these: the state is decayed, written, read by the query and, with a delta rule, read by the key. seq_length:
        ignored."""
        return 2.0 * tokens * self.heads * self.key_size * self.value_size * (3 + self.form.delta)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """One operation, the recurrence in chunks of tokens: scores within each chunk, and products with states."""
        scores = CHUNK * (self.keys * self.key_size * (1 + self.form.delta) + self.heads * self.value_size)
        scores += self.form.delta * CHUNK * self.heads * self.value_size
        states = (2 + self.form.delta) * self.heads * self.key_size * self.value_size
        flops = 2.0 * micro_batch.tokens * (scores + states) / micro_batch.tensor
        moved = 2.0 * sum(self.kept_bytes(micro_batch).values())
        yield Operation(PRODUCTS, Work(flops, moved, 1), Work(2.5 * flops, 2 * moved, 2))

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes kept for the backward, under "": of queries, keys and values, of decays and, if there are any, rates in
        float32, and of a float32 state of each value head for each segment of a sequence. A rank has 1/(c t) of the
        heads, of whole sequences, with c context- and t tensor-parallel ranks."""
        tensor, members = micro_batch.tensor, micro_batch.context.size
        width = (2 * self.keys * self.key_size + self.heads * self.value_size) // tensor * micro_batch.item_size
        width += self.heads // tensor * (1 + self.rated) * FLOAT32
        states = micro_batch.batch * segments(micro_batch.seq_length) * (self.heads // (tensor * members))
        return {"": micro_batch.tokens * width + states * self.key_size * self.value_size * FLOAT32}


def exchanged(micro_batch: MicroBatch, width: int, back: int) -> Iterator[Message]:
    """Messages under context parallelism that exchange features of a rank's tokens for fewer features of whole
    sequences, and back, and those of their gradients (as Ulysses, Jacobs et al., 2023). width, back: features of a
    token, over all tensor-parallel ranks, that are exchanged on the way there and on the way back."""
    members = micro_batch.context.size
    for what, features in (("exchange", width), ("exchange_back", back)):
        size = micro_batch.tokens * (features // micro_batch.tensor) * micro_batch.item_size
        for backward in (False, True):
            to_others = size * (members - 1) // members
            for one in message("cp", "all_to_all", to_others, members, backward=backward):
                yield one.within(what)


class RecurrentMixer(Sublayer):
    """A mixer that keeps a state: a linear, a short convolution (not in lightning attention), a recurrence with the
    gates around it, a linear. inside: paths of `kept_bytes` that lie between the two linears in the part "mixing"."""

    in_proj: Linear
    conv1d: ShortConvolution
    recurrence: Recurrence
    out_proj: Linear

    collectives: ClassVar[tuple[str, ...]] = ("in_proj", "out_proj")
    inside: ClassVar[tuple[str, ...]]
    """The paths under which `kept_bytes` counts the part "mixing", which lies between the two linears; the first is
    that of the part's input."""

    @property
    def mixed(self) -> tuple[int, ...]:
        """The numbers of query, key and value channels that the first linear gives, in the order in which they lie."""
        return self.conv1d.widths

    @property
    def first_linears(self) -> tuple[str, ...]:
        return ("in_proj",)

    def by_head(self, initial: dict[str, AnyInitial]) -> dict[str, ParameterSpec]:
        """Name -> parameter with one value for each head of values. initial: name -> the parameter's first values."""
        shard = ShardSpec(shape=(self.recurrence.heads,), cuts=(Cut(0),))
        return {name: ParameterSpec(shard, values, self.in_proj.dtype) for name, values in initial.items()}

    def parts(self) -> tuple[Part, ...]:
        whole = Part("", holders=self.first_linears, begins=True, aliases=("attention",))
        inside = Part(
            "mixing", runs=self.inside, holders=self.inside[:1], input_bytes=self._rows_bytes, flag="core_attn"
        )
        return whole, inside

    def _rows_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of in_proj's output on a rank."""
        return micro_batch.tokens * (self.in_proj.output_size // micro_batch.tensor) * micro_batch.item_size

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        yield from super().messages(micro_batch)
        yield from exchanged(micro_batch, self.in_proj.output_size, self.out_proj.input_size)
