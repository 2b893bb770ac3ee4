"""DeepSeek sparse attention (DeepSeek-V3.2, 2025): each query attends to the keys that an indexer chooses for it.

With context parallelism each rank computes the indexer's scores of its own queries with the keys of the whole
sequence: the indexer's keys, of one narrow head, are gathered, and for the loss attention's keys too. Attention itself,
to the chosen keys, runs as a ring, by Ulysses, or as both.

The indexer learns from attention, and attention does not learn from it: it is given hidden states and query latents
without their past, and its choice has no gradient. Its loss is KL(p || softmax of its scores), p the mean of
attention's probabilities over heads. The gradient of that loss is computed with it, a block of queries at a time, so
that no s x s square is kept.

s sequence, b batch, h hidden, n heads, t tensor-parallel size; d size of a query's and a key's head, e of a value's;
j heads of the indexer, c their size.
"""

import enum
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.attention.rotary import Rotary
from parallel_core.blocks.latent_attention import SparseLatentAttention
from parallel_core.blocks.sparse_attention import loss_blocks
from parallel_core.config import ModelConfig
from parallel_core.context import Ranges
from parallel_core.numerics.averaging import MicroBatchWeight
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import INDEXER_LOSS
from pynative import kernels, parallel_state
from pynative.context_parallel.ulysses import context_parallel_attention
from pynative.context_parallel.whole import whole_sequence
from pynative.kernels.block import AttentionRule
from pynative.step_figures import current, seed
from pynative.tape import autograd
from pynative.tensor_parallel.layers import DuplicatedLinear
from pynative.tensor_parallel.made_again import detached_made_again, left_out
from pynative.tensor_parallel.mappings import Boundary, gather_from_sequence_parallel_region
from pynative.tensor_parallel.recompute import run_part
from pynative.transformer.carried_choice import Choices, of_block
from pynative.transformer.multi_latent_attention import MLASelfAttention
from pynative.transformer.norm import norm_cell
from pynative.transformer.rope import angle_tables


class Indexed(NamedTuple):
    """The tensors of which an indexer's scores of keys are computed: queries [s, b, j, c], keys [S, b, c] of the whole
    sequence of S tokens, weights of the heads [s, b, j]."""

    query: Tensor
    """Queries [s, b, j, c]."""
    key: Tensor
    """Keys [S, b, c], one for all heads, of the whole sequence of S tokens."""
    weights: Tensor
    """Weights of the heads [s, b, j]."""


class DSAIndexer(nn.Cell):
    """The indexer: linears and a norm that make queries of the query latent, keys and weights of the hidden states;
    whole on every tensor-parallel rank.

    Megatron and DeepSeek turn queries and keys by a Hadamard matrix, which prepares them for 8 bits and is left out
    here: it changes no product of the two.
    """

    def __init__(self, config: ModelConfig, block: blocks.Indexer) -> None:
        super().__init__()
        self.boundary, self.context = Boundary.of(config), parallel_state.get_context_parallel_group()
        self.heads, self.head_size = block.heads, block.head_size
        self.rotary = Rotary.of_latent_attention(config)
        self.rotary_start = block.head_size - config.multi_latent_attention.qk_pos_emb_head_dim
        self.weight_scale = block.heads**-0.5 * block.head_size**-0.5
        self.linear_wq_b = DuplicatedLinear.of(block.linear_wq_b, config=config)
        self.linear_wk = DuplicatedLinear.of(block.linear_wk, config=config)
        self.k_norm = norm_cell(block.k_norm, config)
        self.linear_weights_proj = DuplicatedLinear.of(block.linear_weights_proj, config=config)

    def construct(self, hidden_states: Tensor, query_latent: Tensor) -> Indexed:
        """Hidden states [s, b, h] and query latents [s, b, rank] (hidden states where queries are not compressed), with
        sequence parallelism this rank's shards of them -> the tensors of the scores, for the queries of all
        tensor-parallel ranks and with keys of the whole sequence. No gradient goes back to the arguments."""
        hidden_states, query_latent = map(detached_made_again, (hidden_states, query_latent))
        queries = self._whole(self.linear_wq_b(query_latent)[0])
        keys = self._whole(self.k_norm(self.linear_wk(hidden_states)[0]))
        weights = self._whole(self.linear_weights_proj(hidden_states)[0])
        cos, sin = angle_tables(self.rotary, self.boundary.inside().positions(queries.shape[0]))
        queries = kernels.rotary(kernels.as_heads(queries, self.heads), cos, sin, True, self.rotary_start)
        keys = kernels.rotary(kernels.as_heads(keys, 1), cos, sin, True, self.rotary_start)
        keys = whole_sequence(keys.reshape(*keys.shape[:2], -1), self.context, self.boundary.sequence.context)
        return Indexed(queries, keys, kernels.scale(weights, self.weight_scale))

    def _whole(self, x: Tensor) -> Tensor:
        """The sequence's whole from the shards of tensor-parallel ranks; what follows, and its gradient, is the same on
        all of them."""
        if not self.boundary.cuts_sequence:
            return x
        return gather_from_sequence_parallel_region(x, self.boundary.group, tensor_parallel_output_grad=False)


class DSAttention(nn.Cell):
    """softmax(scale q k^T) v of each query with its chosen keys, for this rank's heads. As in Megatron there is no
    dropout on the probabilities.

    The choice is its own indexer's, or an earlier layer's, which is looked up in `Choices`.
    """

    def __init__(self, config: ModelConfig, layer_number: int, block: blocks.SparseAttention) -> None:
        super().__init__()
        self.layer_number, self.scale, self.topk = layer_number, block.scale, block.topk
        self.chosen_by, self.serves_others = block.chosen_by, block.serves_others
        self.coefficient = block.indexer.loss_coefficient if block.indexer else 0.0
        self.of_chosen_alone = config.sparse_attention.dsa_indexer_use_sparse_loss
        self.group = parallel_state.get_tensor_model_parallel_group()
        self.context = parallel_state.get_context_parallel_group()
        self.ulysses_group = parallel_state.get_context_parallel_group_for_hybrid_ulysses()
        self.ring_group = parallel_state.get_context_parallel_group_for_hybrid_ring()
        self.region = Boundary.of(config).inside()
        self.indexer = DSAIndexer(config, block.indexer) if block.indexer else None

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden_states: Tensor,
        query_latent: Tensor,
        choices: Choices | None = None,
    ) -> Tensor:
        """q, k [s, b, n/t, d] and v [s, b, n/t, e] -> [s, b, n/t x e], whose backward in training also gives the
        indexer the gradient of its loss, unless the loss's coefficient is 0. hidden_states, query_latent: the indexer's
        inputs, with sequence parallelism this rank's shards of them. choices: those that layers share, to which this
        layer may add its own. Raises ValueError if it has no indexer and the choice that it needs is not among them."""
        indexed = None if self.indexer is None else self.indexer(hidden_states, query_latent)
        chosen = None if indexed is None else self._chosen(indexed)
        seen = self._shared(choices) if indexed is None else of_block(chosen, self.ulysses_group)
        if self.serves_others and choices is not None:
            choices[self.chosen_by] = seen
        with left_out(query, key, value):
            rule = AttentionRule(scale=self.scale, chosen=seen)
            out = context_parallel_attention(query, key, value, self.ulysses_group, self.ring_group, rule)
        if indexed is None or not (self.training and autograd.is_recording() and self.coefficient):
            return out
        return self._with_loss(out, query, key, indexed, chosen if self.of_chosen_alone else None)

    def _chosen(self, indexed: Indexed) -> Tensor | None:
        """Positions of the keys chosen for each query, int32 [b, s, topk], ascending, -1 where there are fewer; None if
        the sequence has no more keys than topk."""
        if self.topk >= len(indexed.key):
            return None
        with autograd.no_grad():
            return kernels.choose_keys(*indexed, self.topk, self._positions(indexed.query))

    def _positions(self, query: Tensor) -> Ranges:
        return self.region.positions(len(query))

    def _shared(self, choices: Choices | None) -> Tensor | None:
        if choices is None or self.chosen_by not in choices:
            raise ValueError(
                f"layer {self.layer_number} has no indexer: it needs the choice of layer {self.chosen_by + 1}"
            )
        return choices[self.chosen_by]

    def _with_loss(self, out: Tensor, query: Tensor, key: Tensor, indexed: Indexed, chosen: Tensor | None) -> Tensor:
        """The output, whose backward gives the indexer the gradient of its loss; the loss is reported as a figure.
        chosen: the keys that the loss is limited to; None: all."""
        tokens, figures = query.shape[0] * query.shape[1] * self.context.size, current()
        factor = self.coefficient / tokens
        with autograd.no_grad():
            total, gradients = self._loss(query, key, indexed, chosen, factor * seed(MicroBatchWeight(tokens)))
        if figures is not None:
            figures.add(INDEXER_LOSS, total * factor, self.layer_number, share=1.0 / self.group.size)
        (attached,) = autograd.identity([out], lambda _: gradients, indexed)
        return attached

    def _loss(
        self, query: Tensor, key: Tensor, indexed: Indexed, chosen: Tensor | None, factor: float
    ) -> tuple[float, tuple[Tensor, ...]]:
        """(The divergence summed over this rank's queries, its gradients times `factor` with respect to query, key and
        weights of the indexer's scores)."""
        total, of_queries, of_weights = 0.0, [], []
        of_key = Tensor.from_numpy(np.zeros(indexed.key.shape, np.float32))
        keys = whole_sequence(key, self.context, self.region.sequence.context)
        for queries in loss_blocks(self.region.sequence.context, self._positions(query)):
            target = kernels.attention_target(query, keys, chosen, queries, self.scale)
            if self.group.size > 1:
                target = self.group.all_reduce(target)
            loss, of_query, of_weight = kernels.indexer_gradient(*indexed, chosen, target, queries, factor, of_key)
            total += loss
            of_queries.append(of_query)
            of_weights.append(of_weight)
        wholes = (kernels.join_rows(of_queries), of_key, kernels.join_rows(of_weights))
        return total, tuple(kernels.cast(whole, x.dtype) for whole, x in zip(wholes, indexed, strict=True))


class SparseMLASelfAttention(MLASelfAttention):
    """Latent attention with `DSAttention`, whose indexer reads the hidden states and the queries' latent. A call raises
    ValueError for a mask or document starts."""

    block_type = SparseLatentAttention

    def _core_cell(self, config: ModelConfig, layer_number: int, attn_mask_type: enum.Enum, core: Any) -> nn.Cell:
        return DSAttention(config, layer_number, core)

    def _attended(
        self,
        heads: tuple[Tensor, ...],
        masking: tuple[Tensor | None, Array | None],
        hidden_states: Tensor,
        query_latent: Tensor,
        *choices: Choices,
    ) -> Tensor:
        if any(given is not None for given in masking):
            raise ValueError("sparse attention knows the causal order alone: leave masks and document starts out")
        return run_part(self, "core_attention", self.core_attention, *heads, hidden_states, query_latent, *choices)
