"""Tokens and positions to hidden states."""

from mindspore import Tensor, nn

from parallel_core.initial_values import Normal
from parallel_core.sharding import ShardSpec
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tensor_parallel.layers import VocabParallelEmbedding
from pynative.tensor_parallel.random import get_rng_tracer

EMBEDDING_LAYER = 0
"""Layers are numbered from 1; the embedding's dropout mask belongs to number 0."""


class PositionEmbedding(nn.Cell):
    """A learned vector for each position; whole on every rank."""

    def __init__(self, config) -> None:
        super().__init__()
        spec = ShardSpec(shape=(config.max_position_embeddings, config.hidden_size))
        std = config.init_method_std if config.embedding_init_method_std is None else config.embedding_init_method_std
        self.weight = make_parameter(spec, Normal(std), config.embedding_init_dtype or config.params_dtype)

    def construct(self, position_ids: Tensor) -> Tensor:
        """[...] -> [..., h]."""
        return kernels.embedding(position_ids, self.weight, 0)


class Embedding(nn.Cell):
    """dropout(word embedding + position embedding)."""

    def __init__(self, config) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(config.vocab_size, config.hidden_size, config=config)
        learned = config.position_embedding_type == "learned_absolute"
        self.position_embeddings = PositionEmbedding(config) if learned else None
        self.hidden_dropout = config.hidden_dropout_rate

    def construct(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """tokens and position_ids [b, s] -> [s, b, h]."""
        embeddings = self.word_embeddings(kernels.sequence_first(tokens))
        if self.position_embeddings is not None:
            positions = self.position_embeddings(kernels.sequence_first(position_ids))
            embeddings = kernels.bias_dropout_add(embeddings, None, positions)
        if self.training and self.hidden_dropout:
            embeddings = kernels.dropout(embeddings, self.hidden_dropout, get_rng_tracer().key(EMBEDDING_LAYER, 0))
        return embeddings
