"""The embedding: tokens and positions to hidden states."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.micro_batch import INT32, MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Constant, Normal
from parallel_core.messages import Message
from parallel_core.operations import EMBEDDING, Operation, elementwise
from parallel_core.sharding import Cut, Role, ShardSpec


@dataclass(frozen=True)
class EmbeddingTable(Block):
    """A table of `rows` vectors, one for each id."""

    rows: int
    hidden_size: int
    initial: Normal | Constant
    dtype: str
    cuts: tuple[Cut, ...] = ()
    shared_over: str | None = None
    """Kind of the group whose ranks have copies of the table (see ShardSpec); None: no copies."""
    role: Role | None = None

    @classmethod
    def of_words(cls, config: ModelConfig) -> "EmbeddingTable":
        """The configuration's word embedding: each tensor-parallel rank has a part of the vocabulary."""
        tied = not config.untie_embeddings_and_output_weights
        shared_over = "embedding" if tied or config.copies_embedding else None
        return replace(
            cls.of_positions(config),
            rows=config.vocab_size,
            cuts=(Cut(0),),
            shared_over=shared_over,
            role="embedding or output",
        )

    @classmethod
    def of_positions(cls, config: ModelConfig) -> "EmbeddingTable":
        """The configuration's table of learned positions, whole on every tensor-parallel rank."""
        initial = Normal(config.embedding_init_method_std)
        rows, dtype = config.max_position_embeddings, config.embedding_init_dtype
        return cls(rows, config.hidden_size, initial, dtype, role="positions")

    def parameters(self) -> dict[str, ParameterSpec]:
        shape = (self.rows, self.hidden_size)
        shard = ShardSpec(shape=shape, cuts=self.cuts, shared_over=self.shared_over, role=self.role)
        return {"weight": ParameterSpec(shard, self.initial, self.dtype)}

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """Copies of rows; the backward adds their gradients to the table's."""
        copied = 2 * micro_batch.tokens * self.hidden_size * micro_batch.item_size
        yield elementwise(copied, 2 * copied, 2, EMBEDDING)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes of the ids, kept for the backward, under ""."""
        return {"": micro_batch.tokens * INT32}


@dataclass(frozen=True)
class Embedding(Block):
    """dropout(scale x (norm(word embedding) + position embedding)); norm and positions are optional.

    With sequence parallelism learned positions are added before the sequence is cut, so that all tensor-parallel ranks
    have the same gradient of their table; without learned positions one reduce-scatter both sums over the vocabulary's
    shards and cuts the sequence.
    """

    word_embeddings: EmbeddingTable
    position_embeddings: EmbeddingTable | None
    norm: Norm | None = None
    """The norm of the word embeddings, a layer norm always (BLOOM, 2022)."""
    frozen: bool = False
    """Whether the tables are not trained: no gradient comes back to them."""

    @classmethod
    def of(cls, config: ModelConfig) -> "Embedding":
        """The configuration's embedding."""
        learned = config.position_embedding_type == "learned_absolute"
        norm = replace(Norm.of_branch_output(config, 1.0), kind="LayerNorm")
        if learned:
            norm = replace(norm, partial_over=None)
        return cls(
            EmbeddingTable.of_words(config),
            EmbeddingTable.of_positions(config) if learned else None,
            norm if config.embedding_layernorm else None,
            frozen=config.lora_config.use_lora,
        )

    @property
    def own(self) -> "Embedding":
        """A copy of this block in which the table of words has no copies on other ranks (`shared_over` None)."""
        return replace(self, word_embeddings=replace(self.word_embeddings, shared_over=None))

    def _normed(self, micro_batch: MicroBatch) -> MicroBatch:
        """The micro-batch with sizes as the norm of word embeddings sees them: the table's type, and the whole sequence
        where positions are added after it."""
        sequence = micro_batch.sequence if self.position_embeddings is None else micro_batch.sequence.gathered
        return replace(micro_batch, dtype=self.word_embeddings.dtype, sequence=sequence)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes that its parts keep for the backward; all 0 where the tables are frozen."""
        kept = super().kept_bytes(micro_batch)
        if self.norm is not None:
            kept["norm"] = self.norm.kept_bytes(self._normed(micro_batch))[""]
        return dict.fromkeys(kept, 0) if self.frozen else kept

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages that sum each token's row over the tensor-parallel ranks, one of which has it, and with sequence
        parallelism, unless the tables are frozen, those that gather its gradient; all in the table's type."""
        micro_batch = replace(micro_batch, dtype=self.word_embeddings.dtype)
        width = self.word_embeddings.hidden_size
        if micro_batch.sequence.tensor > 1 and self.position_embeddings is not None:
            size = micro_batch.tokens * width * micro_batch.item_size
            yield from micro_batch.tensor_message("all_reduce", size)
        else:
            yield from micro_batch.leave(width)
        if not self.frozen:
            yield from micro_batch.enter(width, backward=True)


@dataclass(frozen=True)
class SharedEmbedding(Block):
    """The copy of the word embedding that a model's last chunk may have: a parameter under the name that it has in the
    first chunk, without operations, messages and kept bytes."""

    word_embeddings: EmbeddingTable

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        return iter(())

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        return {}
