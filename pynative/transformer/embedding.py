"""Tokens and positions to hidden states."""

import numpy as np
from mindspore import Tensor, nn

from parallel_core.context import as_array
from parallel_core.initial_values import Normal
from parallel_core.sharding import ShardSpec
from pynative import kernels
from pynative.parameter import make_parameter
from pynative.tensor_parallel.layers import VocabParallelEmbedding
from pynative.tensor_parallel.mappings import Boundary
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
    """dropout(word embedding + position embedding), with sequence parallelism of this rank's shard of the sequence.

    Positions are added before the sequence is cut, so that the gradient of their table is whole on every rank. Without
    them the sum over the vocabulary's shards is cut in the same collective.
    """

    def __init__(self, config) -> None:
        super().__init__()
        self.boundary = Boundary.of(config)
        learned = config.position_embedding_type == "learned_absolute"
        self.word_embeddings = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            config=config,
            reduce_scatter_embeddings=self.boundary.cuts_sequence and not learned,
        )
        self.position_embeddings = PositionEmbedding(config) if learned else None
        self.hidden_dropout = config.hidden_dropout_rate
        self.scale = config.scales.embedding

    def construct(self, tokens: Tensor, position_ids: Tensor | None) -> Tensor:
        """tokens and position_ids [b, s] -> [s, b, h], with sequence parallelism [s/t, b, h].

        Without position_ids positions are those in the sequence, of which context parallelism gives a rank a shard.
        """
        embeddings = self.word_embeddings(kernels.sequence_first(tokens))
        if self.position_embeddings is not None:
            ids = self._default_position_ids(*tokens.shape) if position_ids is None else position_ids
            positions = self.position_embeddings(kernels.sequence_first(ids))
            embeddings = self.boundary.scatter(kernels.bias_dropout_add(embeddings, None, positions))
        if self.scale != 1.0:
            embeddings = embeddings * self.scale
        if not (self.training and self.hidden_dropout):
            return embeddings
        key, rows = get_rng_tracer().key(EMBEDDING_LAYER, 0), self.boundary.positions(embeddings.shape[0])
        return kernels.dropout(embeddings, self.hidden_dropout, key, rows)

    def _default_position_ids(self, batch: int, length: int) -> Tensor:
        """Where this context-parallel rank's shard stands in its sequence, the same for every row: int32 [b, s]."""
        numbers = as_array(self.boundary.inside().positions(length))
        return Tensor.from_numpy(np.ascontiguousarray(np.broadcast_to(numbers, (batch, length))))
