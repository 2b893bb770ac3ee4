"""Attention over a window and over compressed entries (DeepSeek-V4, 2026, section 2.3).

s sequence, b batch, h hidden, n heads of d channels, the last r of which rotate; t tensor-parallel size, c ranks of a
sequence, C = s // ratio entries. All heads share one key, which is also the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import sqrt
from typing import ClassVar

from parallel_core.attention.rotary import Rotary
from parallel_core.attention.score_form import ScoreForm
from parallel_core.blocks.attention import CoreAttention
from parallel_core.blocks.block import Block, ParameterSpec, join
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Constant, Normal
from parallel_core.messages import Message, message
from parallel_core.operations import Operation, elementwise
from parallel_core.recompute.parts import Part
from parallel_core.sharding import Cut, ShardSpec


def of_whole_sequence(micro_batch: MicroBatch, width: int, is_share: bool) -> Iterator[Message]:
    """Messages that bring `width` features of each token of the whole sequence to every rank with a shard of it, and
    those of their gradient. is_share: a tensor-parallel rank's gradient is its share of a sum; else it is the same on
    all."""
    yield from micro_batch.enter(width)
    if is_share:
        yield from micro_batch.leave(width, backward=True)
    members, size = micro_batch.context.size, micro_batch.tokens * width * micro_batch.item_size
    yield from message("cp", "all_gather", size, members)
    yield from message("cp", "reduce_scatter", size * members, members, backward=True)


@dataclass(frozen=True)
class Compressor(Block):
    """Tokens to entries, `ratio` tokens each: for each channel the sum of `wkv` x weighted by the softmax over a window
    of `wgate` x + ape, then normed and rotated by the position of the first of the entry's `ratio` tokens. The window
    is these tokens or, where `wkv` gives 2 x `size` channels, these and the `ratio` before them. The s % `ratio` tokens
    at the end of a sequence of s have no entry. Every rank with a shard of the sequence computes all its entries."""

    wkv: Linear
    wgate: Linear
    norm: Norm
    ratio: int
    size: int
    """The number of channels of an entry."""
    std: float
    """Standard deviation of the first values of ape."""

    @classmethod
    def of(cls, config: ModelConfig, ratio: int, size: int, overlaps: bool) -> Compressor:
        """The configuration's compressor of `ratio` tokens to an entry of `size` channels. overlaps: the window of an
        entry covers the tokens of the entry before it, too, and wkv and wgate give 2 x `size` channels instead of
        `size`."""
        linear = Linear.between(config, config.hidden_size, (1 + overlaps) * size)
        norm = replace(Norm.of_latent(config, size), partial_over=None)
        return cls(linear, linear, norm, ratio, size, config.initial_std)

    @property
    def width(self) -> int:
        """The number of channels that wkv, and wgate, give for each token."""
        return self.wkv.output_size

    def parameters(self) -> dict[str, ParameterSpec]:
        """Its linears' and norm's parameters, and ape [ratio, width], float32, whose row p % ratio is added to what
        wgate gives for the token at position p."""
        spec = ParameterSpec(ShardSpec(shape=(self.ratio, self.width)), Normal(self.std), "float32")
        return {"ape": spec, **super().parameters()}

    def entries(self, micro_batch: MicroBatch) -> int:
        """The number of entries, each of `ratio` tokens, of a micro-batch's whole sequences: b (s // ratio)."""
        return micro_batch.batch * (micro_batch.seq_length // self.ratio)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        yield from super().operations(micro_batch)
        moved = micro_batch.tokens * micro_batch.context.size * self.width * micro_batch.item_size
        yield elementwise(2 * moved, 4 * moved).within("pool")

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        for _ in range(2):
            yield from of_whole_sequence(micro_batch, self.width, is_share=False)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: "", values and gates of the whole sequence; "norm", the norm's input
        with a float32 statistic of each entry. The compressor's input is not counted."""
        tokens = micro_batch.batch * micro_batch.seq_length
        of_norm = self.entries(micro_batch) * (self.size * micro_batch.item_size + FLOAT32)
        return {"": 2 * tokens * self.width * micro_batch.item_size, "norm": of_norm}


@dataclass(frozen=True)
class EntryIndexer(Block):
    """The choice of the entries that a query sees, at most `topk`, by scores of several heads: keys are entries of a
    compressor of its own, queries come by `linear_wq_b` from attention's query latent, and each head has a weight by
    `linear_weights_proj`. All of it is whole on every tensor-parallel rank. `loss_coefficient`: weight of the loss that
    trains the indexer; 0: there is none."""

    compressor: Compressor
    linear_wq_b: Linear
    linear_weights_proj: Linear
    heads: int
    head_size: int
    topk: int
    loss_coefficient: float

    @classmethod
    def of(cls, config: ModelConfig, ratio: int) -> EntryIndexer:
        """The configuration's indexer of entries of `ratio` tokens."""
        sparse, rank = config.sparse_attention, config.multi_latent_attention.q_lora_rank
        heads, size = sparse.dsa_indexer_n_heads, sparse.dsa_indexer_head_dim
        return cls(
            Compressor.of(config, ratio, size, overlaps=True),
            Linear.between(config, rank or config.hidden_size, heads * size),
            Linear.between(config, config.hidden_size, heads),
            heads, size, sparse.dsa_indexer_topk, sparse.dsa_indexer_loss_coeff or 0.0,
        )  # fmt: skip

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        scores = 2.0 * tokens * (seq_length // self.compressor.ratio) * self.heads * self.head_size
        return super().forward_flops(tokens, seq_length) + scores

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages by which, under sequence parallelism, tensor-parallel ranks gather queries and weights of each
        other's tokens; those of the compressor; and, with a loss, those that sum attention's probabilities over the
        tensor-parallel ranks."""
        yield from super().messages(micro_batch)
        for width in (self.heads * self.head_size, self.heads):
            yield from micro_batch.enter(width)
        if self.loss_coefficient:
            size = micro_batch.tokens * (micro_batch.seq_length // self.compressor.ratio) * FLOAT32
            yield from micro_batch.tensor_message("all_reduce", size, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: "", the gradients of its queries, weights and keys, which are computed
        with its loss; and, under its paths, what the compressor keeps. Without a loss nothing has a gradient, and the
        result is empty."""
        if not self.loss_coefficient:
            return {}
        inner = {join("compressor", name): size for name, size in self.compressor.kept_bytes(micro_batch).items()}
        gradients = micro_batch.tokens * self.heads * (self.head_size + 1)
        gradients += self.compressor.entries(micro_batch) * self.head_size
        return {"": gradients * micro_batch.item_size, **inner}


@dataclass(frozen=True)
class EntryAttention(CoreAttention):
    """Attention of each query to the keys of its window, to entries and to a sink, as one softmax. ratio: tokens of an
    entry; 0: the layer has none."""

    ratio: int = 0

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of the scores and values of the window and of all entries."""
        window = self.form.window
        seen = min(seq_length, seq_length if window is None else window + 1)
        seen += seq_length // self.ratio if self.ratio else 0
        return super().forward_flops(tokens, seen)

    def keys_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the keys of a micro-batch's whole sequences: one of each token and, with a `ratio`, one of each
        compressed entry of `ratio` tokens."""
        keys = micro_batch.seq_length + (micro_batch.seq_length // self.ratio if self.ratio else 0)
        return micro_batch.batch * keys * self.query_key_size * micro_batch.item_size

    def input_bytes(self, micro_batch: MicroBatch) -> int:
        queries = micro_batch.tokens * (self.heads // micro_batch.tensor) * self.query_key_size * micro_batch.item_size
        return queries + self.keys_bytes(micro_batch)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """No messages: every rank has all keys."""
        return iter(())

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes kept for the backward, under "": of queries, keys and entries, of two float32 statistics of each row of
        scores, and of the output in float32."""
        rows = micro_batch.tokens * (self.heads // micro_batch.tensor)
        return {"": self.input_bytes(micro_batch) + rows * (2 + self.value_size) * FLOAT32}


@dataclass(frozen=True)
class GroupedLinear(Linear):
    """A linear of features in groups, each with rows of the weight of its own: W [groups x o, i], with i input and o
    output features a group. It lies inside a tensor-parallel region, where a rank has some of the groups."""

    groups: int = 1

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        return iter(())

    def input_bytes(self, micro_batch: MicroBatch) -> int:
        return micro_batch.tokens * (self.groups // micro_batch.tensor) * self.input_size * micro_batch.item_size


@dataclass(frozen=True)
class CompressedAttention(Sublayer):
    """Attention over a window and compressed entries. Queries: linear_q -> q_layernorm -> linear_q_up_proj -> each head
    normed, without a weight, and rotated. One key of all heads, which is also their value: linear_kv -> kv_layernorm ->
    rotated; beside it the entries of `compressor`, if there is one. The heads' output is rotated back by the query's
    position, then projected in groups, then together. Without --qk-layernorm both layernorms are None."""

    linear_q: Linear
    q_layernorm: Norm | None
    linear_q_up_proj: Linear
    linear_kv: Linear
    kv_layernorm: Norm | None
    compressor: Compressor | None
    indexer: EntryIndexer | None
    core_attention: EntryAttention
    linear_o_down_proj: GroupedLinear
    linear_o_up_proj: Linear
    rotary: Rotary
    rotary_size: int
    """The number of rotary channels of a head, r."""
    epsilon: float
    """Epsilon of the norm of queries' heads."""

    collectives: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> CompressedAttention:
        """Attention of the configuration's layer with this global number, from 0."""
        latent, given, heads = config.multi_latent_attention, config.compressed_attention, config.num_attention_heads
        size, rank, hidden, ratio = latent.qk_head_dim, latent.q_lora_rank, config.hidden_size, given.ratio(number)
        assert rank is not None, "a rule wants --q-lora-rank"
        groups, wide, indexed = given.output_groups, given.output_groups * given.output_rank, given.has_indexer(number)
        down = Linear.column(config, heads * size // groups, wide, bias=False)
        sinks = ParameterSpec(ShardSpec(shape=(heads,), cuts=(Cut(0),)), Constant(0.0), "float32")
        form = ScoreForm(window=given.window - 1)
        return cls(
            Linear.between(config, hidden, rank),
            Norm.of_latent(config, rank) if config.qk_layernorm else None,
            Linear.column(config, rank, heads * size, bias=False),
            Linear.between(config, hidden, size),
            Norm.of_latent(config, size) if config.qk_layernorm else None,
            Compressor.of(config, ratio, size, indexed) if ratio else None,
            EntryIndexer.of(config, ratio) if indexed else None,
            EntryAttention(heads, 1, size, size, 1.0 / sqrt(size), form, True, sinks, ratio),
            GroupedLinear(**{field.name: getattr(down, field.name) for field in fields(down)}, groups=groups),
            Linear.row(config, wide, bias=config.out_proj_has_bias),
            Rotary.of_compressed_attention(config, bool(ratio)),
            latent.qk_pos_emb_head_dim,
            config.norm_epsilon,
        )

    @property
    def first_linears(self) -> tuple[str, ...]:
        return "linear_q", "linear_kv"

    def parts(self) -> tuple[Part, ...]:
        whole = Part("", holders=self.first_linears, begins=True, aliases=("attention",))
        return whole, self.core_attention.part()

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of its parts, the norm and rotation of queries, and the rotation of the output."""
        yield from super().operations(micro_batch)
        turned = 3 * micro_batch.tokens * self.linear_q_up_proj.output_size // micro_batch.tensor
        yield elementwise(2 * turned * micro_batch.item_size, 3 * turned * micro_batch.item_size, 3).within("rotary")

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of its parts; those by which every rank gets the one key of the whole sequence, and its gradient
        is summed; and those that sum the gradient of entries over the tensor-parallel ranks, which have different
        heads."""
        yield from super().messages(micro_batch)
        for one in of_whole_sequence(micro_batch, self.core_attention.query_key_size, is_share=True):
            yield one.within("linear_kv")
        if self.compressor is not None:
            size = self.compressor.entries(micro_batch) * self.compressor.size * micro_batch.item_size
            for one in micro_batch.tensor_message("all_reduce", size, backward=True):
                yield one.within("compressor")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: those that its parts keep, where linear_q and linear_kv keep one input;
        "queries", of queries before their norm, with a float32 deviation of each head; and, with a compressor,
        "hidden", a byte for each query and entry, which says whether the query may not see it: for each sequence where
        an indexer chooses among the entries, else once for all sequences."""
        kept = super().kept_bytes(micro_batch)
        first, second = self.first_linears
        if kept[first]:
            kept[second] = 0
        core, item_size = self.core_attention, micro_batch.item_size
        rows = micro_batch.tokens * (core.heads // micro_batch.tensor)
        kept["queries"] = rows * (core.query_key_size * item_size + FLOAT32)
        if self.compressor is not None:
            count = micro_batch.seq_length // core.ratio
            chooses = self.indexer is not None and self.indexer.topk < count  # otherwise every text sees all entries
            kept["hidden"] = micro_batch.tokens // (1 if chooses else micro_batch.batch) * count
        return kept
