"""The embedding of tokens and positions: ids to hidden states."""

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.context import as_array
from pynative import kernels
from pynative.parameter import make_parameter, type_of
from pynative.tape.layer_events import Observable
from pynative.tensor_parallel.layers import VocabParallelEmbedding
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.random import get_rng_tracer
from pynative.transformer.norm import norm_of

EMBEDDING_LAYER = 0
"""The layer number of the embedding's dropout mask; layers themselves are numbered from 1."""


class PositionEmbedding(nn.Cell):
    """An embedding of positions: a learned vector [h] for each, whole on every tensor-parallel rank."""

    def __init__(self, table: blocks.EmbeddingTable) -> None:
        super().__init__()
        self.weight = make_parameter(*table.parameters()["weight"])

    def construct(self, position_ids: Tensor) -> Tensor:
        """position_ids [...] -> [..., h]."""
        return kernels.embedding(position_ids, self.weight, 0)


class Embedding(Observable):
    """dropout(scale x (norm(word embedding) + position embedding)); with sequence parallelism this rank's shard of it.
    Norm and learned positions are optional, and dropout acts in training.

    Positions are added before the sequence is cut, so that the gradient of their table is whole on every
    tensor-parallel rank. Without a position embedding sequence parallelism needs one collective in the forward, a
    reduce-scatter, which both sums over the vocabulary's shards and cuts the sequence.
    """

    def __init__(self, config: ModelConfig, block: blocks.Embedding | None = None) -> None:
        super().__init__()
        self.boundary = Boundary.of(config)
        block = blocks.Embedding.of(config) if block is None else block
        words, positions = block.word_embeddings, block.position_embeddings
        cut_at_once = self.boundary.cuts_sequence and positions is None
        self.word_embeddings = VocabParallelEmbedding.of(words, config=config, reduce_scatter_embeddings=cut_at_once)
        self.position_embeddings = None if positions is None else PositionEmbedding(positions)
        self.norm = norm_of(block.norm, config)
        self.hidden_dropout = config.hidden_dropout_rate
        self.residual_dtype = type_of(config.residual_dtype)
        self.scale = config.scales.embedding

    def construct(self, tokens: Tensor, position_ids: Tensor | None, ahead: int = 0) -> Tensor:
        """tokens and position_ids [b, s] -> [s, b, h] of the residual's type, with sequence parallelism [s/t, b, h].

        position_ids are read for learned positions alone; None: the positions in the sequence, of which context
        parallelism gives a rank a shard. ahead: the number of places by which the given tokens were shifted
        (multi-token prediction); each number has its own dropout mask.
        """
        embeddings = self.word_embeddings(kernels.sequence_first(tokens))
        if self.norm is not None:
            embeddings = self.norm(embeddings)
        if self.position_embeddings is not None:
            ids = self._default_position_ids(*tokens.shape) if position_ids is None else position_ids
            positions = self.position_embeddings(kernels.sequence_first(ids))
            embeddings = self.boundary.scatter(kernels.bias_dropout_add(embeddings, None, positions))
        embeddings = kernels.cast(embeddings, self.residual_dtype)
        if self.scale != 1.0:
            embeddings = kernels.scale(embeddings, self.scale)
        if not (self.training and self.hidden_dropout):
            return embeddings
        key, rows = get_rng_tracer().key(EMBEDDING_LAYER, ahead), self.boundary.positions(embeddings.shape[0])
        return kernels.dropout(embeddings, self.hidden_dropout, key, rows)

    def _default_position_ids(self, batch: int, length: int) -> Tensor:
        """int32 [b, s]: the positions of this context-parallel rank's shard in the sequence, the same for every row."""
        numbers = as_array(self.boundary.inside().positions(length))
        return Tensor.from_numpy(np.ascontiguousarray(np.broadcast_to(numbers, (batch, length))))
