"""DeepSeek sparse attention (DeepSeek-V3.2, 2025): an indexer chooses the keys that a query of latent attention sees.

s sequence, b batch, h hidden, n heads; j heads of the indexer, c their size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from parallel_core.blocks.attention import CoreAttention
from parallel_core.blocks.block import Block, join
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, INT32, MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.config import ModelConfig
from parallel_core.context import ContextLayout, Ranges, Run, runs
from parallel_core.messages import Message, message

LOSS_BLOCK = 256
"""The largest number of a sequence's queries whose probabilities exist at once where the indexer's loss is computed."""


def loss_blocks(layout: ContextLayout, positions: Ranges) -> list[Run]:
    """A rank's query positions in blocks of at most LOSS_BLOCK (256) neighbours. In a ring a block has at most half of
    the rank's positions, so that each rank has at least two blocks."""
    length = sum(map(len, positions))
    return runs(positions, min(LOSS_BLOCK, length // 2 if layout.ring > 1 else length))


def bytes_of_choice(count: int, micro_batch: MicroBatch) -> int:
    """Bytes of `count` chosen positions of each query that a rank attends with, after Ulysses' exchange."""
    return micro_batch.tokens * micro_batch.context.ulysses * count * INT32


def exchanged(count: int, micro_batch: MicroBatch) -> Iterator[Message]:
    """The messages by which Ulysses' ranks gather `count` chosen positions of each query; none for 0, or where Ulysses
    has one rank."""
    if count:
        members = micro_batch.context.ulysses
        yield from message("cp-ulysses", "all_gather", micro_batch.tokens * count * INT32, members)


@dataclass(frozen=True)
class Indexer(Block):
    """The indexer: queries linear_wq_b of attention's query latent (of the hidden states where there is none), one key
    for all heads k_norm(linear_wk), and a weight of each head; all whole on every tensor-parallel rank.

    The plain channels of each head come first, then the rotary ones. `loss_coefficient`: weight of the loss that trains
    the indexer; 0: there is none.
    """

    linear_wq_b: Linear
    linear_wk: Linear
    k_norm: Norm
    linear_weights_proj: Linear
    heads: int
    head_size: int
    loss_coefficient: float

    @classmethod
    def of(cls, config: ModelConfig) -> "Indexer":
        """The configuration's indexer."""
        sparse, hidden = config.sparse_attention, config.hidden_size
        heads, size = sparse.dsa_indexer_n_heads, sparse.dsa_indexer_head_dim
        rank = config.multi_latent_attention.q_lora_rank or hidden
        return cls(
            Linear.between(config, rank, heads * size),
            Linear.between(config, hidden, size),
            _norm_of_keys(config, size),
            Linear.between(config, hidden, heads),
            heads,
            size,
            sparse.dsa_indexer_loss_coeff,
        )

    @property
    def widths(self) -> tuple[int, int, int]:
        """The numbers of features of a token's queries, of its key, and of its weights."""
        return self.heads * self.head_size, self.head_size, self.heads

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of its linears and of the scores of the whole s x s square."""
        scores = 2.0 * tokens * seq_length * self.heads * self.head_size
        return super().forward_flops(tokens, seq_length) + scores

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages by which, under sequence parallelism, each tensor-parallel rank gets the queries, keys and
        weights of all tokens of the group; and those by which, under context parallelism, each rank gets the keys of
        the whole sequence and, with the indexer's loss, its part of their gradient."""
        for width in self.widths:
            yield from micro_batch.enter(width)
        members, size = micro_batch.context.size, micro_batch.tokens * self.head_size * micro_batch.item_size
        yield from message("cp", "all_gather", size, members)
        if self.loss_coefficient:
            yield from message("cp", "reduce_scatter", size * members, members, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: "", of the gradients of its loss, which are computed with the loss (0
        without a loss); "k_norm", by k_norm (0 if linear_wk is frozen without an adapter). Inputs of its linears are
        not counted here."""
        queries, keys, weights = self.widths
        width = queries + micro_batch.context.size * keys + weights
        gradient = micro_batch.tokens * width * micro_batch.item_size if self.loss_coefficient else 0
        has_gradient = self.linear_wk.keeps_input
        return {"": gradient, "k_norm": self.k_norm.kept_bytes(micro_batch)[""] if has_gradient else 0}


def _norm_of_keys(config: ModelConfig, size: int) -> Norm:
    like = Norm.of_latent(config, size)
    return replace(like, kind="LayerNorm", epsilon=config.sparse_attention.dsa_indexer_k_norm_epsilon or like.epsilon)


@dataclass(frozen=True)
class SparseAttention(CoreAttention):
    """Core attention of each query with the keys that an indexer chooses, at most topk: the layer's own indexer, or
    (`indexer` None) that of an earlier layer (IndexShare, arXiv 2603.12201). chosen_by: global number, from 0, of the
    layer whose indexer chooses; serves_others: whether later layers use its choice, too."""

    indexer: Indexer | None = field(kw_only=True)
    topk: int = field(kw_only=True)
    chosen_by: int = field(kw_only=True)
    """Global number, from 0, of the layer whose indexer chooses."""
    serves_others: bool = field(kw_only=True)
    """Whether later layers use its choice, too."""

    @classmethod
    def of(cls, config: ModelConfig, number: int, sizes: tuple[Any, ...]) -> "SparseAttention":
        """Core attention of the configuration's layer with this global number, from 0. sizes: the first fields of
        `CoreAttention`, in order, at least those without a default."""
        sparse, layers = config.sparse_attention, config.num_layers + config.multi_token_prediction.depths
        sources = [sparse.chosen_by(layer, config.num_layers) for layer in (number, number + 1)]
        return cls(
            *sizes,
            indexer=Indexer.of(config) if sources[0] == number else None,
            topk=sparse.dsa_indexer_topk,
            chosen_by=sources[0],
            serves_others=number + 1 < layers and sources == [number] * 2,
        )

    def keys_of_query(self, seq_length: int) -> int:
        """The largest number of keys that a query of a sequence of `seq_length` tokens attends to."""
        return min(self.topk, seq_length)

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of attention to the chosen keys alone, and of its own indexer, if it has one."""
        own = super().forward_flops(tokens, self.keys_of_query(seq_length))
        return own + (self.indexer.forward_flops(tokens, seq_length) if self.indexer else 0.0)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages of attention and, if it has an indexer of its own, of that and, unless that chooses all keys, of
        Ulysses' exchange of its choices. With the indexer's loss also two kinds that count as the backward's: the
        gather of attention's keys over the sequence, and for each block of queries (`loss_blocks`) the sum of
        probabilities over tensor-parallel ranks, whose bytes are the mean over context-parallel ranks; where these have
        unequal numbers of blocks, as many messages as the rank with most sends."""
        yield from super().messages(micro_batch)
        if self.indexer is None:
            return
        yield from exchanged(self.topk if self.topk < micro_batch.seq_length else 0, micro_batch)
        for one in self.indexer.messages(micro_batch):
            yield one.within("indexer")
        if self.indexer.loss_coefficient:
            yield from self._messages_of_loss(micro_batch)

    def _messages_of_loss(self, micro_batch: MicroBatch) -> Iterator[Message]:
        layout, width = micro_batch.context, self.heads // micro_batch.tensor * self.query_key_size
        size = micro_batch.tokens * width * micro_batch.item_size
        yield from message("cp", "all_gather", size, layout.size, backward=True)
        shards = (layout.positions(micro_batch.seq_length, rank) for rank in range(layout.size))
        for blocks in zip_longest(*(loss_blocks(layout, positions) for positions in shards)):
            scores = sum(len(queries.rows) * queries.positions.stop for queries in blocks if queries is not None)
            size = micro_batch.batch * scores * FLOAT32 // layout.size
            yield from micro_batch.tensor_message("all_reduce", size, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward: by attention and the indexer, and for the keys that this layer's indexer
        chose, unless later layers use this choice, too (`kept_for_others`)."""
        of_indexer = self.indexer.kept_bytes(micro_batch) if self.indexer else {}
        inner = {join("indexer", name): size for name, size in of_indexer.items()}
        return {"": self._own_bytes(micro_batch), **inner}

    def _own_bytes(self, micro_batch: MicroBatch) -> int:
        is_its_own = self.indexer is not None and not self.serves_others
        return super().kept_bytes(micro_batch)[""] + is_its_own * self.chosen_bytes(micro_batch)

    def chosen_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the chosen positions of the queries that a rank attends with; 0 where all keys are chosen."""
        return bytes_of_choice(self.topk, micro_batch) if self.topk < micro_batch.seq_length else 0
