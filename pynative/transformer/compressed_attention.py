"""Attention over a window of tokens and over compressed entries (DeepSeek-V4, 2026, section 2.3), heads cut over ranks.

One key serves all heads and is the value, too; it and the entries are whole on every tensor-parallel rank. s a rank's
sequence, S the whole one, b batch, h hidden, n heads of d channels, t tensor-parallel size, C entries.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.context import Ranges, as_array
from parallel_core.numerics.averaging import MicroBatchWeight
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from parallel_core.step_figures import INDEXER_LOSS
from pynative import kernels, key_value_cache, parallel_state
from pynative.context_parallel.whole import whole_sequence
from pynative.kernels.block import AttentionRule, Partial, Scores
from pynative.parameter import make_parameter
from pynative.step_figures import current, seed
from pynative.tape import autograd
from pynative.tensor_parallel.grouped_linear import GroupedLinear
from pynative.tensor_parallel.layers import ColumnParallelLinear, DuplicatedLinear, RowParallelLinear
from pynative.tensor_parallel.made_again import detached_made_again, fork_made_again
from pynative.tensor_parallel.mappings import Boundary, copy_to_tensor_model_parallel_region
from pynative.tensor_parallel.recompute import NOTHING, run_part
from pynative.transformer.compressor import Compressor, EntryIndexer, Indexed, later_entries, seen_entries
from pynative.transformer.norm import norm_of
from pynative.transformer.rope import angles


class _Blocks(autograd.Function):
    """Attention with one softmax over several blocks of keys and a sink, where each key is its own value."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, sinks: Tensor, scores: Any, statistics: Any, *keys: Tensor) -> Tensor:
        partial = None
        for block, own in zip(scores, keys, strict=True):
            partial = kernels.attention_block(q, own, own, block, partial)
        assert partial is not None
        partial = kernels.with_sinks(partial, sinks)
        ctx.scores, ctx.sinks = scores, sinks
        ctx.save_for_backward(q, *keys, *partial)
        statistics[:] = partial[1:]
        return kernels.cast(partial.out, q.dtype)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, *keys = ctx.saved_tensors
        keys, partial = keys[:-3], Partial(*keys[-3:])
        dq, of_keys = None, []
        for block, own in zip(ctx.scores, keys, strict=True):
            dq, dk, dv = kernels.attention_block_gradient(q, own, own, dout, partial, block, dq)
            kernels.add_(dk, dv)
            of_keys.append(kernels.cast(dk, own.dtype))
        of_sinks = kernels.sinks_gradient(partial, ctx.sinks, 0, dout)
        return kernels.cast(dq, q.dtype), of_sinks, None, None, *of_keys


class EntryAttention(nn.Cell):
    """Attention of each query to the keys of its window, the entries that are not hidden from it, and its head's
    sink."""

    def __init__(self, config: ModelConfig, layer_number: int, block: blocks.EntryAttention) -> None:
        super().__init__()
        assert block.softmax_offset is not None
        self.layer_number = layer_number
        self.rule = AttentionRule(scale=block.scale, form=block.form)
        self.boundary = Boundary.of(config).inside()
        self.softmax_offset = make_parameter(*block.softmax_offset)

    def construct(
        self, query: Tensor, key: Tensor, entries: Tensor | None, hidden: Tensor | None, statistics: list[Tensor]
    ) -> Tensor:
        """query [s, b, n/t, d], key [S, b, 1, d] of the whole sequence, entries [C, b, 1, d] or None, hidden bool [b or
        1, 1, s, C] (None without entries), True where a query does not see an entry, -> [s, b, n/t x d]. `statistics`
        is filled with the softmax's statistics of each row (`Partial`). For a new token in generation key is the cached
        window, and statistics stays empty."""
        cache = key_value_cache.current()
        if cache is not None and cache.continues:
            return self._of_cache(query, key, entries, hidden, cache)
        positions, length = self.boundary.positions(len(query)), len(key)
        whole = (range(length),)
        rule = (
            self.rule if positions == whole else replace(self.rule, mask=_window_mask(positions, length, self._window))
        )
        scores, keys = [Scores.of(rule, positions, whole, length)], [key]
        if entries is not None:
            count = len(entries)
            given = replace(AttentionRule(scale=self.rule.scale), mask=hidden)
            scores.append(Scores.of(given, positions, (range(count),), count))
            keys.append(entries)
        out: Tensor = _Blocks.apply(query, self.softmax_offset, scores, statistics, *keys)
        return out

    @property
    def _window(self) -> int:
        assert self.rule.form.window is not None
        return self.rule.form.window

    def _of_cache(
        self, query: Tensor, key: Tensor, entries: Tensor | None, hidden: Tensor | None, cache: Any
    ) -> Tensor:
        """Attention of one new token of each text: the cached window and the entries that are not hidden are its
        keys."""
        ages = cache.ages(self.layer_number)
        if entries is not None and hidden is not None:
            shown = np.broadcast_to(~hidden.asnumpy()[:, 0, 0], (query.shape[1], len(entries)))
            ages = np.concatenate((ages, np.where(shown.T, 0, -1).astype(np.int32)))
            key = kernels.join_rows((key, entries))
        return kernels.cached_attention(query, key, key, ages, self.rule, self.softmax_offset)


@lru_cache(maxsize=8)
def _window_mask(positions: Ranges, length: int, window: int) -> Tensor:
    """Bool [1, 1, s, S], True for the keys outside of the window of each of this rank's s queries at `positions`: later
    ones, and those more than `window` positions before it. length: S."""
    ages = as_array(positions)[:, None] - np.arange(length)
    return Tensor.from_numpy(((ages < 0) | (ages > window))[None, None])


class CompressedAttention(nn.Cell):
    """The cell of `blocks.CompressedAttention`: queries by a latent, one key of all heads, which is their value, too,
    entries if the layer has a `Compressor`, perhaps chosen by an `EntryIndexer`, and two output projections: one within
    each group of features, then one from all groups' results to the hidden size."""

    def __init__(
        self, config: ModelConfig, layer_number: int, block: blocks.CompressedAttention,
        recomputed: CellRecompute = NOTHING,
    ) -> None:  # fmt: skip
        super().__init__()
        self.recomputed, self.boundary, self.layer_number = recomputed, Boundary.of(config), layer_number
        self.group = parallel_state.get_context_parallel_group()
        self.heads = block.core_attention.heads // self.boundary.group.size
        self.size, self.epsilon = block.core_attention.query_key_size, block.epsilon
        self.rotary, self.rotary_start = block.rotary, self.size - block.rotary_size
        self.ratio = block.core_attention.ratio
        self.linear_q = DuplicatedLinear.of(block.linear_q, config=config)
        self.q_layernorm = norm_of(block.q_layernorm, config)
        self.linear_q_up_proj = ColumnParallelLinear.of(block.linear_q_up_proj, config=config)
        self.linear_kv = DuplicatedLinear.of(block.linear_kv, config=config)
        self.kv_layernorm = norm_of(block.kv_layernorm, config)
        of_entries, of_index = (layer_number, "entries"), (layer_number, "index")
        self.compressor = self.indexer = None
        if block.compressor is not None:
            self.compressor = Compressor(config, block.compressor, block.rotary, of_entries)
        if block.indexer is not None:
            self.indexer = EntryIndexer(config, block.indexer, block.rotary, of_index)
        self.core_attention = EntryAttention(config, layer_number, block.core_attention)
        self.linear_o_down_proj = GroupedLinear(config, block.linear_o_down_proj)
        self.linear_o_up_proj = RowParallelLinear.of(block.linear_o_up_proj, config=config)

    def construct(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, document_starts: Array | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, the bias [h] still to be added or
        None). Raises ValueError for a mask or document starts."""
        if attention_mask is not None or document_starts is not None:
            raise ValueError("compressed attention knows the causal order alone: leave masks and document starts out")
        hidden_states, latent, key = self._projected(hidden_states)
        for_index = latent
        if self.indexer is not None:
            latent, for_index = fork_made_again(latent)
        query = self._queries(latent)
        entries, hidden, indexed = self._entries(hidden_states, for_index, len(query))
        statistics: list[Tensor] = []
        out = run_part(self, "core_attention", self.core_attention, query, key, entries, hidden, statistics)
        if indexed is not None and hidden is not None and self._learns:
            out = self._with_loss(out, query, entries, hidden, indexed, statistics)
        statistics.clear()  # recompute keeps the arguments of the part alive
        out = kernels.as_heads(out, self.heads)
        cos, sin = angles(self.rotary.back, self.boundary.inside().positions(len(out)))
        turned = kernels.rotary(out, cos, sin, True, self.rotary_start)
        return self.linear_o_up_proj(self.linear_o_down_proj(turned.reshape(*turned.shape[:2], -1)))

    def _projected(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(Hidden states, for the entries; the queries' latent; the key [S, b, 1, d] of the whole sequence, or in
        generation of the cache)."""
        for_queries, hidden_states = fork_made_again(hidden_states)
        for_key, hidden_states = fork_made_again(hidden_states)
        latent, _ = self.linear_q(for_queries)
        latent = latent if self.q_layernorm is None else self.q_layernorm(latent)
        key, _ = self.linear_kv(for_key)
        key = self.boundary.entered(key if self.kv_layernorm is None else self.kv_layernorm(key))
        cos, sin = angles(self.rotary, self.boundary.inside().positions(len(key)))
        key = kernels.rotary(kernels.as_heads(key, 1), cos, sin, True, self.rotary_start)
        cache = key_value_cache.current()
        if cache is not None:
            (key,) = cache.keep(self.layer_number, self.core_attention.rule.form, key)
        return hidden_states, latent, whole_sequence(key, self.group, self.boundary.sequence.context)

    def _queries(self, latent: Tensor) -> Tensor:
        """Queries [s, b, n/t, d] of their latent, normed by head and rotated."""
        rows, _ = self.linear_q_up_proj(latent)
        query = kernels.as_heads(rows, self.heads)
        query = kernels.rms_norm(query, _ones(self.size), self.epsilon)
        cos, sin = angles(self.rotary, self.boundary.inside().positions(len(query)))
        return kernels.rotary(query, cos, sin, True, self.rotary_start)

    def _entries(
        self, hidden_states: Tensor, latent: Tensor, queries: int
    ) -> tuple[Tensor | None, Tensor | None, Indexed | None]:
        """(The entries [C, b, 1, d], bool [b or 1, 1, s, C], True for those hidden from a query of this rank, the
        indexer's parts of the scores). Each is None where there is none. queries: s."""
        if self.compressor is None:
            return None, None, None
        hidden_states, for_index = fork_made_again(hidden_states)
        entries = self.compressor(*fork_made_again(hidden_states))
        seen, indexed = seen_entries(self.boundary, queries, self.ratio), None
        if self.indexer is not None:
            indexed = self.indexer(detached_made_again(for_index), detached_made_again(latent))
        if entries is None:
            return None, None, None
        entries = copy_to_tensor_model_parallel_region(entries, self.boundary.group)
        if indexed is None or self.indexer is None or self.indexer.topk >= len(entries):
            return entries, later_entries(seen, len(entries)), indexed
        with autograd.no_grad():
            hidden = kernels.choose_entries(indexed.query, indexed.key, indexed.weights, self.indexer.topk, seen)
        return entries, hidden, indexed

    @property
    def _learns(self) -> bool:
        assert self.indexer is not None
        return bool(self.training and autograd.is_recording() and self.indexer.coefficient)

    def _with_loss(
        self, out: Tensor, query: Tensor, entries: Tensor, hidden: Tensor, indexed: Indexed, statistics: list[Tensor]
    ) -> Tensor:
        """The output, whose backward gives the indexer the gradient of its loss: the divergence of its scores' softmax
        from the probabilities of the chosen entries, summed over heads (DeepSeek-V3.2, 2025). The loss is reported as a
        figure."""
        assert self.indexer is not None
        tokens, figures, group = query.shape[0] * query.shape[1] * self.group.size, current(), self.boundary.group
        factor = self.indexer.coefficient / tokens
        with autograd.no_grad():
            target = kernels.entries_target(query, entries, hidden, self.core_attention.rule.scale, *statistics)
            target = group.all_reduce(target) if group.size > 1 else target
            scaled = factor * seed(MicroBatchWeight(tokens))
            total, *gradients = kernels.entries_gradient(*indexed, hidden, target, scaled)
            gradients = [kernels.cast(given, x.dtype) for given, x in zip(gradients, indexed, strict=True)]
        if figures is not None:
            figures.add(INDEXER_LOSS, total * factor, self.layer_number, share=1.0 / group.size)
        (attached,) = autograd.identity([out], lambda _: gradients, indexed)
        return attached


@lru_cache(maxsize=8)
def _ones(size: int) -> Tensor:
    """Ones, float32 [size]: the weight of a norm without a parameter."""
    return Tensor.from_numpy(np.ones(size, np.float32))
