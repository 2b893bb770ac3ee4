"""Compression of windows of tokens to entries, and an indexer that chooses among the entries (DeepSeek-V4, 2026,
section 2.3).

Entries are the same on all ranks of a sequence. s a rank's sequence, b batch, h hidden, C entries of d channels; j
heads of the indexer, e their size.
"""

from typing import NamedTuple

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.attention.rotary import Rotary
from parallel_core.attention.score_form import PLAIN
from parallel_core.config import ModelConfig
from parallel_core.context import as_array
from parallel_core.numerics.dtypes import Array
from pynative import kernels, key_value_cache, parallel_state
from pynative.context_parallel.whole import whole_sequence
from pynative.parameter import make_parameter
from pynative.tensor_parallel.layers import DuplicatedLinear
from pynative.tensor_parallel.mappings import Boundary, gather_from_sequence_parallel_region
from pynative.transformer.norm import norm_cell
from pynative.transformer.rope import angle_tables, angles

Place = tuple[int, str]
"""(Layer number, name): the key under which the key/value cache keeps something."""


def gathered(x: Tensor, boundary: Boundary) -> Tensor:
    """[s, ...], the shards of all tensor-parallel ranks one after the other; x itself without sequence parallelism. The
    backward takes this rank's shard of the gradient, which must be the same on all these ranks. boundary: says whether
    and over which ranks the sequence is cut."""
    if not boundary.cuts_sequence:
        return x
    return gather_from_sequence_parallel_region(x, boundary.group, tensor_parallel_output_grad=False)


def seen_entries(boundary: Boundary, length: int, ratio: int) -> Array:
    """The number of entries, the first ones, that each query of this rank may see, int32 [s, 1]: those that are
    complete at its position. boundary: says at which positions the rank's queries are; length: s; ratio: tokens of an
    entry. For one new token of each of b texts in generation int32 [1, b]; then the cache says the positions."""
    cache = key_value_cache.current()
    if cache is not None and cache.continues:
        return cache.lengths[None] // ratio
    return ((as_array(boundary.inside().positions(length)) + 1) // ratio)[:, None]


class Compressor(nn.Cell):
    """Entries, one for each `ratio` tokens: pooled over these, in some layers also over the `ratio` before them, then
    normed, and rotated by the position of the first of its own tokens."""

    def __init__(self, config: ModelConfig, block: blocks.Compressor, rotary: Rotary, place: Place) -> None:
        super().__init__()
        self.boundary, self.rotary, self.place = Boundary.of(config), rotary, place
        self.group = parallel_state.get_context_parallel_group()
        self.ratio, self.size = block.ratio, block.size
        self.rotary_start = block.size - config.multi_latent_attention.qk_pos_emb_head_dim
        self.ape = make_parameter(*block.parameters()["ape"])
        self.wkv = DuplicatedLinear.of(block.wkv, config=config)
        self.wgate = DuplicatedLinear.of(block.wgate, config=config)
        self.norm = norm_cell(block.norm, config)

    def construct(self, for_values: Tensor, for_gates: Tensor) -> Tensor | None:
        """Hidden states [s, b, h], with sequence parallelism this rank's shard of them (given twice, as forked for two
        uses) -> entries [C, b, 1, d] of the whole sequence, in generation with a cache of all tokens so far; None where
        there are fewer than `ratio` tokens."""
        values, gates = self._whole(self.wkv(for_values)[0]), self._whole(self.wgate(for_gates)[0])
        cache = key_value_cache.current()
        if cache is not None:
            values, gates = cache.keep(self.place, PLAIN, values, gates)
        count = len(values) // self.ratio
        if not count:
            return None
        pooled = self.norm(kernels.pool_windows(values, gates, self.ape, self.ratio, self.size))
        cos, sin = angle_tables(self.rotary, (range(0, count * self.ratio, self.ratio),))
        return kernels.rotary(kernels.as_heads(pooled, 1), cos, sin, True, self.rotary_start)

    def _whole(self, x: Tensor) -> Tensor:
        return whole_sequence(gathered(x, self.boundary), self.group, self.boundary.sequence.context)


class Indexed(NamedTuple):
    """The tensors of which an indexer's scores of entries are computed: queries [s, b, j, e] of j heads, keys
    [C, b, e], one for each entry, weights of the heads [s, b, j]."""

    query: Tensor
    """Queries [s, b, j, e]."""
    key: Tensor
    """Keys [C, b, e], one for each entry."""
    weights: Tensor
    """Weights of the heads [s, b, j]."""


class EntryIndexer(nn.Cell):
    """The indexer of entries: queries of the query latent, keys of its own compressor's entries, and weights of the
    hidden states."""

    def __init__(self, config: ModelConfig, block: blocks.EntryIndexer, rotary: Rotary, place: Place) -> None:
        super().__init__()
        self.boundary, self.rotary, self.heads = Boundary.of(config), rotary, block.heads
        self.topk, self.coefficient = block.topk, block.loss_coefficient
        self.weight_scale = block.heads**-0.5 * block.head_size**-0.5
        self.rotary_start = block.head_size - config.multi_latent_attention.qk_pos_emb_head_dim
        self.compressor = Compressor(config, block.compressor, rotary, place)
        self.linear_wq_b = DuplicatedLinear.of(block.linear_wq_b, config=config)
        self.linear_weights_proj = DuplicatedLinear.of(block.linear_weights_proj, config=config)

    def construct(self, hidden_states: Tensor, query_latent: Tensor) -> Indexed | None:
        """Hidden states [s, b, h] and query latents, with sequence parallelism this rank's shards of them, both
        detached -> the tensors of the scores; None: there is no entry."""
        keys = self.compressor(hidden_states, hidden_states)
        if keys is None:
            return None
        queries = gathered(self.linear_wq_b(query_latent)[0], self.boundary)
        weights = gathered(self.linear_weights_proj(hidden_states)[0], self.boundary)
        cos, sin = angles(self.rotary, self.boundary.inside().positions(len(queries)))
        queries = kernels.rotary(kernels.as_heads(queries, self.heads), cos, sin, True, self.rotary_start)
        return Indexed(queries, keys.reshape(*keys.shape[:2], -1), kernels.scale(weights, self.weight_scale))


def later_entries(seen: Array, count: int) -> Tensor:
    """A bool mask [b or 1, 1, s, C], True for the entries that a query may not see. seen: of `seen_entries`; count:
    C."""
    return Tensor.from_numpy((np.arange(count) >= seen.T[..., None])[:, None])
