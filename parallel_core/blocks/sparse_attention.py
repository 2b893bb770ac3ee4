"""DeepSeek sparse attention (DeepSeek-V3.2, 2025): an indexer chooses the keys that a query of latent attention sees.

s sequence, b batch, h hidden, n heads; j heads of the indexer, c their size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from parallel_core.blocks.attention import CoreAttention
from parallel_core.blocks.block import Block, join
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32, INT32, MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.config import ModelConfig
from parallel_core.messages import Message

LOSS_BLOCK = 256
"""Queries whose probabilities exist at once where the indexer's loss is computed."""


def loss_blocks(seq_length: int) -> list[range]:
    """The queries of a sequence, a block at a time."""
    return [range(start, min(start + LOSS_BLOCK, seq_length)) for start in range(0, seq_length, LOSS_BLOCK)]


@dataclass(frozen=True)
class Indexer(Block):
    """Queries linear_wq_b of attention's query latent, one key for all heads k_norm(linear_wk), and a weight of each
    head; all whole on every tensor-parallel rank, as latents are.

    Of each head come first the plain channels, then the rotary ones.
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
        """The configuration's."""
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
        """Elements of a token's queries, key and weights."""
        return self.heads * self.head_size, self.head_size, self.heads

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs, with the scores of the whole s x s square."""
        scores = 2.0 * tokens * seq_length * self.heads * self.head_size
        return super().forward_flops(tokens, seq_length) + scores

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Every rank has the whole sequence's queries, keys and weights, and the same gradient of them."""
        for width in self.widths:
            yield from micro_batch.enter(width)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Its inputs are those of attention's projections; the gradient of its loss is computed with the loss."""
        gradient = micro_batch.tokens * sum(self.widths) * micro_batch.item_size if self.loss_coefficient else 0
        has_gradient = self.linear_wk.keeps_input
        return {"": gradient, "k_norm": self.k_norm.kept_bytes(micro_batch)[""] if has_gradient else 0}


def _norm_of_keys(config: ModelConfig, size: int) -> Norm:
    like = Norm.of_latent(config, size)
    return replace(like, kind="LayerNorm", epsilon=config.sparse_attention.dsa_indexer_k_norm_epsilon or like.epsilon)


@dataclass(frozen=True)
class SparseAttention(CoreAttention):
    """Core attention of each query with the keys that an indexer chooses, at most topk: its own, or that of a layer
    before it (IndexShare, arXiv 2603.12201)."""

    indexer: Indexer | None = field(kw_only=True)
    topk: int = field(kw_only=True)
    chosen_by: int = field(kw_only=True)
    """Global number of the layer that has the indexer, 0-based."""
    serves_others: bool = field(kw_only=True)
    """Whether later layers have its choice, too."""

    @classmethod
    def of(cls, config: ModelConfig, number: int, sizes: tuple[Any, ...]) -> "SparseAttention":
        """The configuration's, of the layer of this global number, 0-based. sizes: those of `CoreAttention`."""
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
        """The largest number of keys of a query."""
        return min(self.topk, seq_length)

    def forward_flops(self, tokens: int, seq_length: int) -> float:
        """FLOPs of the chosen keys alone."""
        own = super().forward_flops(tokens, self.keys_of_query(seq_length))
        return own + (self.indexer.forward_flops(tokens, seq_length) if self.indexer else 0.0)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The indexer's, and the sum of all ranks' probabilities, block by block. It is for the gradient of the
        indexer's loss, which no first run of a part that is computed again asks for."""
        if self.indexer is None:
            return
        for one in self.indexer.messages(micro_batch):
            yield one.within("indexer")
        if self.indexer.loss_coefficient:
            for queries in loss_blocks(micro_batch.seq_length):
                size = micro_batch.batch * len(queries) * queries.stop * FLOAT32
                yield from micro_batch.tensor_message("all_reduce", size, backward=True)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """The bytes that attention keeps, and those of its own choice."""
        of_indexer = self.indexer.kept_bytes(micro_batch) if self.indexer else {}
        inner = {join("indexer", name): size for name, size in of_indexer.items()}
        return {"": self._own_bytes(micro_batch), **inner}

    def _own_bytes(self, micro_batch: MicroBatch) -> int:
        is_its_own = self.indexer is not None and not self.serves_others
        return super().kept_bytes(micro_batch)[""] + is_its_own * self.chosen_bytes(micro_batch)

    def chosen_bytes(self, micro_batch: MicroBatch) -> int:
        """Bytes of the chosen positions, unless they are all."""
        return micro_batch.tokens * self.topk * INT32 if self.topk < micro_batch.seq_length else 0
