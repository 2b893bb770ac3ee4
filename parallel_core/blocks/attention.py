"""Multi-head and grouped-query attention (Vaswani et al., 2017; Ainslie et al., 2023), heads cut over ranks.

s sequence, b batch, h hidden, n heads, g key/value groups, d head size, t tensor-parallel, u Ulysses, r ring size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm, sqrt
from typing import TYPE_CHECKING, ClassVar

from parallel_core.attention.fused_rows import QueryKeyValueRows
from parallel_core.attention.rotary import Rotary
from parallel_core.attention.score_form import PLAIN, ScoreForm
from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch
from parallel_core.blocks.norm import Norm, head_norm
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.initial_values import Normal
from parallel_core.messages import Message, message
from parallel_core.operations import Operation, attention, elementwise
from parallel_core.recompute.parts import Part
from parallel_core.sharding import Cut, ShardSpec, share

if TYPE_CHECKING:
    from typing_extensions import Self

    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class CoreAttention(Block):
    """Core attention: softmax(scale q k^T) v, its bytes counted without a score matrix (FlashAttention, Dao et al.,
    2022)."""

    heads: int
    groups: int
    query_key_size: int
    """Channels of a query's and of a key's head."""
    value_size: int
    """Channels of a value's head."""
    scale: float
    """Factor of the scores q k^T."""
    form: ScoreForm = PLAIN
    """The window, cap and bias of scores. Scores outside of the window are counted as operations all the same."""
    sinks: bool = False
    """Whether each head's softmax has one more score, without a value (--softmax-type): 0, or a learnt one."""
    softmax_offset: ParameterSpec | None = None
    """The learnt score of each head [n]; None: not learnt."""

    def parameters(self) -> dict[str, ParameterSpec]:
        own = {} if self.softmax_offset is None else {"softmax_offset": self.softmax_offset}
        return {**own, **super().parameters()}

    def with_sinks(self, config: ModelConfig) -> Self:
        """A copy of the block with the configuration's --softmax-type: `sinks` unless that is "vanilla", and with
        "learnable" the parameter of the sinks, too."""
        unit = self.heads // self.groups * config.parallel_config.unaligned_linear
        shard = ShardSpec(shape=(self.heads,), cuts=(Cut(0, unit=unit),))
        learnt = ParameterSpec(shard, Normal(config.initial_std), config.params_dtype)
        kind = config.softmax_type
        return replace(self, sinks=kind != "vanilla", softmax_offset=learnt if kind == "learnable" else None)

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of scores and values over the whole s x s square, not the causal half (as Narayanan et al., 2021), of
        the heads of all tensor-parallel ranks."""
        return 2.0 * tokens * seq_length * self.heads * (self.query_key_size + self.value_size)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        tokens, length = micro_batch.tokens, micro_batch.seq_length
        moved = sum(self._widths(micro_batch)) * tokens * micro_batch.item_size
        flops, scores = self.forward_flops(tokens, length), float(tokens * length * self.heads)
        shard = flops / micro_batch.tensor, moved, scores / micro_batch.tensor
        yield attention(*shard, length, micro_batch.context.ring)

    def local_groups(self, tensor: int) -> int:
        """The number of key/value heads that each of `tensor` tensor-parallel ranks holds, those that fill up the last
        ranks of an uneven cut included; ranks that share a head have one each."""
        return share(self.groups, tensor)

    def local_heads(self, tensor: int) -> int:
        """The number of query heads that each of `tensor` tensor-parallel ranks holds, those that fill up the last
        ranks of an uneven cut included."""
        return share(self.heads, tensor, self.heads // self.groups if self.groups >= tensor else 1)

    def _key_value_heads(self, micro_batch: MicroBatch) -> int:
        """Key/value heads of a tensor-parallel rank, each repeated until every Ulysses rank has one: g' = lcm(g/t,
        u)."""
        return lcm(self.local_groups(micro_batch.tensor), micro_batch.context.ulysses)

    def _widths(self, micro_batch: MicroBatch) -> tuple[int, int]:
        """The number of a token's elements on a tensor-parallel rank: of queries, keys and values together, with the
        heads repeated for Ulysses, and of the output."""
        heads, groups = self.local_heads(micro_batch.tensor), self._key_value_heads(micro_batch)
        keys_values = groups * (self.query_key_size + self.value_size)
        return heads * self.query_key_size + keys_values, heads * self.value_size

    def input_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of a rank's queries, keys and values, before any exchange under context parallelism."""
        groups = self.local_groups(micro_batch.tensor) * (self.query_key_size + self.value_size)
        width = self.local_heads(micro_batch.tensor) * self.query_key_size + groups
        return micro_batch.tokens * width * micro_batch.item_size

    def part(self) -> Part:
        """Core attention as a part of its layer for recompute, "core_attn": its inputs, queries, keys and values, are
        kept."""
        aliases = "attention.flash_attention", "self_attention.core_attention.flash_attention"
        path = "core_attention"
        return Part(path, holders=(path,), input_bytes=self.input_bytes, flag="core_attn", aliases=aliases)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        yield from self._ulysses(micro_batch)
        yield from self._ring(micro_batch)

    def _ulysses(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages of Ulysses: queries, keys and values to heads and the output back to the sequence, and their
        gradients (Jacobs et al., 2023)."""
        members = micro_batch.context.ulysses
        inputs, output = self._widths(micro_batch)
        for width in (inputs, output):
            to_others = micro_batch.tokens * width * micro_batch.item_size * (members - 1) // members
            for backward in (False, True):
                yield from message("cp-ulysses", "all_to_all", to_others, members, backward=backward)

    def _ring(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages of the ring: keys and values around it, forward and again backward, and their gradients in float32
        (Liu et al., 2023). After Ulysses a rank has u times the sequence and 1/u of the heads."""
        members, heads = micro_batch.context.ring, self._key_value_heads(micro_batch)
        for item_size, backward in ((micro_batch.item_size, False), (micro_batch.item_size, True), (FLOAT32, True)):
            for width in (self.query_key_size, self.value_size):
                size = micro_batch.tokens * heads * width * item_size
                for one in message("cp-ring", "send", size, members, backward=backward):
                    yield one.times(members - 1)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes that FlashAttention keeps for the backward, under "": of queries, keys and values; of each row of
        scores the maximum and the sum in float32; and of the output where Ulysses sends it on, or where the ring or
        sinks give it in float32 and layers compute in another type."""
        inputs, output = self._widths(micro_batch)
        kept = inputs * micro_batch.item_size + self.local_heads(micro_batch.tensor) * 2 * FLOAT32
        in_float32 = micro_batch.context.ring > 1 or self.sinks
        if in_float32 and (micro_batch.context.ulysses > 1 or micro_batch.item_size != FLOAT32):
            kept += output * FLOAT32
        elif micro_batch.context.ulysses > 1:
            kept += output * micro_batch.item_size
        return {"": micro_batch.tokens * kept}


@dataclass(frozen=True)
class Attention(Sublayer):
    """Attention: linear_qkv -> norms of queries and keys, if any -> their rotation (with `norms_after_rotary` the norms
    second) -> core attention -> times the sigmoid of gates, if any -> linear_proj.

    linear_qkv's rows are grouped by key/value group: its n/g query heads, as many gates if there are any, its key head,
    its value head. `output_gate`: whether there are gates; `rotary` None: nothing is rotated.
    """

    linear_qkv: Linear
    q_layernorm: Norm | None
    k_layernorm: Norm | None
    core_attention: CoreAttention
    linear_proj: Linear
    rotary: Rotary | None
    output_gate: bool = False
    norms_after_rotary: bool = False
    """Whether queries and keys are normed after their rotation, not before."""

    collectives: ClassVar[tuple[str, ...]] = ("linear_qkv", "linear_proj")

    @property
    def rows(self) -> QueryKeyValueRows:
        """The order of linear_qkv's rows, where it gives queries, keys and values."""
        core = self.core_attention
        return QueryKeyValueRows(core.heads, core.groups, core.query_key_size, self.output_gate)

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> Attention:
        """Attention of the configuration's layer with this global number, from 0."""
        heads, groups, size = config.num_attention_heads, config.num_query_groups, config.kv_channels
        tensor = config.parallel_config.tensor_model_parallel_size
        rows = QueryKeyValueRows(heads, groups, size, config.attention_output_gate)
        parts = tuple(map(len, rows.of_group(0)))
        linear_qkv = Linear.column(
            config, config.hidden_size, rows.count, bias=config.qkv_has_bias, unit=sum(parts) * (groups >= tensor)
        )
        return cls(
            replace(linear_qkv, interleaved_rows=parts),
            head_norm(config, heads) if config.qk_layernorm else None,
            head_norm(config, groups) if config.qk_layernorm else None,
            CoreAttention(
                heads, groups, size, size, config.scales.of_scores(1.0 / sqrt(size)), ScoreForm.of(config, number)
            ).with_sinks(config),
            Linear.row(config, heads * size, bias=config.out_proj_has_bias, unit=heads // groups * size),
            Rotary.of(config, number),
            config.attention_output_gate,
            config.qk_norm_after_rotary,
        )

    @property
    def first_linears(self) -> tuple[str, ...]:
        return ("linear_qkv",)

    def parts(self) -> tuple[Part, ...]:
        whole = Part("", holders=self.first_linears, begins=True, aliases=("attention",))
        return whole, self.core_attention.part()

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        yield from super().operations(micro_batch)
        if self.rotary is not None:
            turned = 2 * self.core_attention.input_bytes(micro_batch)
            yield elementwise(turned, turned, 2).within("rotary")
        if self.output_gate:
            output = self.linear_proj.input_bytes(micro_batch)
            yield elementwise(3 * output, 5 * output).within("gate")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep, and those of core attention's output. Without
        gates that stands under "linear_proj", whose input it is, even if linear_proj does not need its input; with
        gates under "gate", together with the bytes of the gates by which the output is multiplied."""
        kept, output = super().kept_bytes(micro_batch), self.linear_proj.input_bytes(micro_batch)
        return {**kept, "gate": 2 * output} if self.output_gate else {**kept, "linear_proj": output}

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        yield from super().messages(micro_batch)
        yield from self._shared_groups(micro_batch)

    def _shared_groups(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages where there are fewer key/value groups than tensor-parallel ranks: queries, keys and values of all
        ranks are gathered, and their gradients scattered."""
        if self.core_attention.groups < micro_batch.tensor:
            size = micro_batch.tokens * self.linear_qkv.output_size * micro_batch.item_size
            for one in micro_batch.tensor_message("all_gather", size // micro_batch.tensor):
                yield one.within("shared_groups")
            for one in micro_batch.tensor_message("reduce_scatter", size, backward=True):
                yield one.within("shared_groups")
