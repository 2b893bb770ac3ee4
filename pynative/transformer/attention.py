"""Multi-head and grouped-query attention (Vaswani et al., 2017; Ainslie et al., 2023), heads cut over ranks.

s sequence, b batch, h hidden, n heads, g key/value groups, d head size, t tensor-parallel size. g/t is 1 where g < t;
where t does not divide g (--unaligned-linear), it is rounded up, and n/t stands for the heads of these groups.
"""

import enum
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from parallel_core.step_figures import LARGEST_SCORE
from pynative import kernels, key_value_cache, parallel_state
from pynative.context_parallel.ulysses import context_parallel_attention
from pynative.kernels.block import AttentionRule, LargestScores
from pynative.parameter import make_parameter
from pynative.step_figures import current
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from pynative.tensor_parallel.made_again import left_out
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.query_groups import take_shared_group
from pynative.tensor_parallel.random import get_rng_tracer
from pynative.tensor_parallel.recompute import NOTHING, keep_collectives, run_part
from pynative.transformer.enums import AttnMaskType, is_causal
from pynative.transformer.norm import norm_of
from pynative.transformer.rope import angles

ATTENTION_DROPOUT = 0
"""Place of the attention's dropout mask among a layer's masks."""


class CoreAttention(nn.Cell):
    """softmax(scale q k^T) v, for this rank's heads and its shard of the sequence; with the layer's window, cap, bias
    and sinks, and in training with dropout. layer_number: global, from 1; block None: as the configuration says for
    that layer."""

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        attn_mask_type: enum.Enum = AttnMaskType.causal,
        block: blocks.CoreAttention | None = None,
    ) -> None:
        super().__init__()
        block = blocks.Attention.of(config, layer_number - 1).core_attention if block is None else block
        self.layer_number = layer_number
        self.dropout_rate, self.reports = config.attention_dropout_rate, config.qk_clip.measures
        size = parallel_state.get_tensor_model_parallel_world_size()
        heads = block.local_heads(size)
        self.rule = AttentionRule(
            scale=block.scale,
            causal=is_causal(attn_mask_type),
            form=block.form,
            head_offset=parallel_state.get_tensor_model_parallel_rank() * heads,
        )
        self.softmax_offset = _sinks_of(block, heads)
        self.ulysses_group = parallel_state.get_context_parallel_group_for_hybrid_ulysses()
        self.ring_group = parallel_state.get_context_parallel_group_for_hybrid_ring()

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
    ) -> Tensor:
        """q [s, b, n/t, d], k [s, b, g/t, d], v [s, b, g/t, e] (e is d in most models), mask [b, 1, s, s] (True: left
        out) or None -> [s, b, n/t x e].

        A given mask replaces the order by attn_mask_type, causal by default: it says itself which later keys are left
        out. document_starts, int32 [b, s], the first position of each query's document, hides earlier keys in any case.
        With context parallelism s is the length of this rank's shard in q, k and v; attention_mask [b, 1, queries, keys
        of the whole sequence] and document_starts have the rows of the queries that attend on this rank
        (`ContextShard.queries`). Both are ignored for a new token in generation, which sees the cached ones.
        """
        cache = key_value_cache.current()
        if cache is not None and cache.continues:
            ages = cache.ages(self.layer_number)
            return kernels.cached_attention(query, key, value, ages, self.rule, self.softmax_offset)
        rate = self.dropout_rate if self.training else 0.0
        dropout_key = get_rng_tracer().key(self.layer_number, ATTENTION_DROPOUT) if rate else ()
        given = replace(
            self.rule, mask=attention_mask, first_keys=document_starts, dropout_rate=rate, dropout_key=dropout_key
        )
        groups, figures = (self.ulysses_group, self.ring_group), current()
        largest = list[LargestScores]() if self.reports and figures is not None else None
        with left_out(query, key, value):
            given = replace(given, largest=largest)
            out = context_parallel_attention(query, key, value, *groups, given, self.softmax_offset)
        if figures is not None:
            for first, values in largest or ():
                figures.add(LARGEST_SCORE, values, self.layer_number, first=first)
        return out


def _sinks_of(block: blocks.CoreAttention, heads: int) -> Tensor | None:
    """The sinks of this rank's heads [n/t]: learnt, or 0 (Miller, "Attention Is Off By One", 2023); None: there are
    none."""
    if block.softmax_offset is not None:
        return make_parameter(*block.softmax_offset)
    return Tensor.from_numpy(np.zeros(heads, np.float32)) if block.sinks else None


class ParallelAttention(nn.Cell):
    """linear_qkv -> norms of queries and keys, if any, over each head or over all heads -> rotation, if any -> core
    attention -> times sigmoid(gates), if any -> linear_proj; in some models the norms come after the rotation.

    linear_qkv's rows are grouped by key/value group: its n/g query heads, as many gates if there are any, its key head,
    its value head. Where ranks share a group (g < t), each has the group's key and value, and n/t of its query heads.
    layer_number: global, from 1; block None: as the configuration says for that layer.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        attn_mask_type: enum.Enum = AttnMaskType.causal,
        block: blocks.Attention | None = None,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__()
        self.recomputed = recomputed
        self.group = parallel_state.get_tensor_model_parallel_group()
        block = blocks.Attention.of(config, layer_number - 1) if block is None else block
        core = block.core_attention
        self.heads, self.groups, self.head_size = core.heads, core.groups, core.query_key_size
        self.rows, self.output_gate = block.rows, block.output_gate
        self.local_groups = core.local_groups(self.group.size)
        self.heads_per_group = core.local_heads(self.group.size) // self.local_groups
        self.linear_qkv = ColumnParallelLinear.of(block.linear_qkv, config=config)
        self.q_layernorm, self.k_layernorm = norm_of(block.q_layernorm, config), norm_of(block.k_layernorm, config)
        self.rotary, self.norms_after_rotary = block.rotary, block.norms_after_rotary
        self.region = Boundary.of(config).inside()
        self.core_attention = CoreAttention(config, layer_number, attn_mask_type, core)
        self.linear_proj = RowParallelLinear.of(block.linear_proj, config=config)
        keep_collectives(self)

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
        *shared: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, the bias [h] still to be added or
        None). attention_mask, document_starts: as `CoreAttention` takes them. shared: further arguments, which go to
        `heads_of`."""
        query, gate, key, value = self.heads_of(hidden_states, *shared)
        if self.norms_after_rotary:
            query, key = self._normed(*self._turned(query, key))
        else:
            query, key = self._turned(*self._normed(query, key))
        cache = key_value_cache.current()
        if cache is not None:
            key, value = cache.keep(self.core_attention.layer_number, self.core_attention.rule.form, key, value)
        out = run_part(self, "core_attention", self.core_attention, query, key, value, attention_mask, document_starts)
        if gate is not None:
            out = kernels.gate(out, gate, "sigmoid")
        return run_part(self, "linear_proj", self.linear_proj, out)

    def heads_of(self, hidden_states: Tensor, *shared: Any) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(Queries [s, b, n/t, d], gates [s, b, g/t, n/g x d] or None, keys, values [s, b, g/t, d]) of hidden states;
        with g < t there is one group, of n/t heads. shared: for a subclass whose layers share something; ignored
        here."""
        rows, _ = run_part(self, "linear_qkv", self.linear_qkv, hidden_states)
        return self._split(take_shared_group(rows, self.group, self.rows))

    def _normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_layernorm is None or self.k_layernorm is None:
            return query, key
        return self.q_layernorm(query), self.k_layernorm(key)

    def _turned(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if self.rotary is None:
            return query, key
        cos, sin = angles(self.rotary, self.region.positions(query.shape[0]))
        turn = partial(kernels.rotary, cos=cos, sin=sin, interleaved=self.rotary.interleaved)
        return turn(query), turn(key)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """(Queries [s, b, n/t, d], gates or None, keys, values [s, b, g/t, d]) of the fused rows of linear_qkv."""
        groups, heads, size = self.local_groups, self.heads_per_group, self.head_size
        if not self.output_gate:
            query, key, value = kernels.split_qkv(qkv, groups, heads, size)
            return query, None, key, value
        both, key, value = kernels.split_qkv(qkv, groups, 2 * heads, size)
        leading = tuple(both.shape[:2])
        query, gate = kernels.split_features(both.reshape(*leading, groups, 2 * heads * size), (heads * size,) * 2)
        return query.reshape(*leading, groups * heads, size), gate, key, value
