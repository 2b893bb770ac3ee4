"""Multi-head latent attention (DeepSeek-V2, 2024): values and plain channels of keys of all heads come from one narrow
latent vector.

s sequence, b batch, h hidden, n heads; of each head p plain and r rotary channels of queries and keys, e of values.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

from parallel_core.attention.rotary import Rotary, yarn_magnitude
from parallel_core.attention.score_form import ScoreForm
from parallel_core.blocks.attention import CoreAttention
from parallel_core.blocks.block import join
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.sparse_attention import SparseAttention
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import ModelConfig
from parallel_core.messages import Message
from parallel_core.operations import Operation, elementwise
from parallel_core.recompute.parts import Again, Part, Sizes


@dataclass(frozen=True)
class UpProjections(Part):
    """Up projections and rotation as a part to recompute: core attention does not keep their results, queries, keys and
    values (but see `kept`). Their inputs stay: latents, the rotary key, hidden states for uncompressed queries.
    rotary_size: channels of the rotary key."""

    rotary_size: int = 0

    def kept(self, kept: Sizes, normed: int, micro_batch: MicroBatch, asked: Collection[str]) -> Sizes:
        """Path -> bytes that the layer keeps once this part is recomputed, from those (`kept`) that it keeps otherwise.
        Core attention loses its inputs, unless Ulysses' exchange copies them and core attention is not recomputed
        itself. normed: bytes of the normed hidden states, kept as input of uncompressed queries. asked: paths of all
        parts that are recomputed."""
        (core,), attention = self.feeds, self.path.rpartition(".")[0]
        is_dropped = micro_batch.context.ulysses == 1 or core in asked
        return {
            **kept,
            **dict.fromkeys(self.holders[:1], normed),
            **dict.fromkeys(self.holders[1:], 0),
            core: kept[core] - is_dropped * self._results(micro_batch),
            join(attention, "rotary_key"): micro_batch.tokens * self.rotary_size * micro_batch.item_size,
        }

    def _results(self, micro_batch: MicroBatch) -> int:
        assert self.input_bytes is not None
        return self.input_bytes(micro_batch)

    def kept_by_second_run(self, kept: Sizes, micro_batch: MicroBatch) -> int:
        return self._results(micro_batch)


@dataclass(frozen=True)
class LatentAttention(Sublayer):
    """Latent attention. Queries: linear_q_proj or, compressed, linear_q_down_proj -> q_layernorm -> linear_q_up_proj.
    Keys and values: linear_kv_down_proj -> [latent, one rotary key for all heads], latent -> kv_layernorm ->
    linear_kv_up_proj. A norm that is None is left out; query_scale and key_value_scale multiply the two latents behind
    their norms.

    Rows of linear_q_up_proj (linear_q_proj) are, head by head, p plain channels and r rotary ones; of linear_kv_up_proj
    p of the key and e of the value. Down projections are whole on every tensor-parallel rank. With sequence parallelism
    the latents and the rotary key are gathered, hidden states only for linear_q_proj.
    """

    linear_q_proj: Linear | None
    linear_q_down_proj: Linear | None
    q_layernorm: Norm | None
    linear_q_up_proj: Linear | None
    linear_kv_down_proj: Linear
    kv_layernorm: Norm | None
    linear_kv_up_proj: Linear
    core_attention: CoreAttention
    linear_proj: Linear
    rotary: Rotary
    rotary_size: int
    """The number of rotary channels of a head, r."""
    query_scale: float = 1.0
    """Factor of the query's latent."""
    key_value_scale: float = 1.0
    """Factor of the latent of keys and values."""

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "LatentAttention":
        """Attention of the configuration's layer with this global number, from 0."""
        latent, heads, hidden = config.multi_latent_attention, config.num_attention_heads, config.hidden_size
        query_size, rank = latent.qk_head_dim + latent.qk_pos_emb_head_dim, latent.q_lora_rank
        key_value_size = latent.qk_head_dim + latent.v_head_dim
        normed, direct = config.qk_layernorm, rank is None
        return cls(
            Linear.column(config, hidden, heads * query_size, bias=False, unit=query_size) if direct else None,
            None if rank is None else Linear.between(config, hidden, rank),
            None if rank is None or not normed else Norm.of_latent(config, rank),
            None if rank is None else Linear.column(config, rank, heads * query_size, bias=False, unit=query_size),
            Linear.between(config, hidden, latent.kv_lora_rank + latent.qk_pos_emb_head_dim),
            Norm.of_latent(config, latent.kv_lora_rank) if normed else None,
            Linear.column(config, latent.kv_lora_rank, heads * key_value_size, bias=False, unit=key_value_size),
            cls._core(config, number, _core_sizes(config, number, query_size)),
            Linear.row(config, heads * latent.v_head_dim, bias=config.out_proj_has_bias, unit=latent.v_head_dim),
            Rotary.of_latent_attention(config),
            latent.qk_pos_emb_head_dim,
            sqrt(hidden / rank) if rank is not None and latent.scale_q_lora else 1.0,
            sqrt(hidden / latent.kv_lora_rank) if latent.scale_kv_lora else 1.0,
        )

    @classmethod
    def _core(cls, config: ModelConfig, number: int, sizes: tuple[Any, ...]) -> CoreAttention:
        return CoreAttention(*sizes).with_sinks(config)

    @property
    def first_linears(self) -> tuple[str, ...]:
        return "linear_q_down_proj" if self.linear_q_proj is None else "linear_q_proj", "linear_kv_down_proj"

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed: the whole, the up projections, core attention. The up projections take the
        latents and the rotary key; for queries that are not compressed (linear_q_proj) the normed hidden states."""
        begins, core = self.linear_q_proj is not None, self.core_attention
        of_queries = "linear_q_proj" if begins else "linear_q_up_proj"
        up_projections = UpProjections(
            "up_projections", Again.OUTPUTS, (of_queries, "linear_kv_up_proj"), self.first_linears if begins else (),
            ("core_attention",), begins, core.input_bytes, "mla_up_proj", ("latent.up_projections",),
            rotary_size=self.rotary_size,
        )  # fmt: skip
        whole = Part("", holders=self.first_linears, begins=True, aliases=("attention",))
        return whole, up_projections, core.part()

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """The operations of its parts, and one more, "rotary", by which queries and keys get their rotated channels
        beside the plain ones."""
        yield from super().operations(micro_batch)
        joined = 4 * self.core_attention.input_bytes(micro_batch)
        yield elementwise(joined, joined, 6).within("rotary")

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The messages of its parts, and of the rotary key, which all heads use: those that sum its gradient over the
        tensor-parallel ranks and, with sequence parallelism, those that gather it."""
        yield from super().messages(micro_batch)
        for one in micro_batch.enter(self.rotary_size):
            yield one.within("rotary_key")
        for one in micro_batch.leave(self.rotary_size, backward=True):
            yield one.within("rotary_key")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward by its parts. The first projections of queries and of keys and values
        have one input, counted once, at the first that keeps it; the input of `linear_proj` counts even if that does
        not need it."""
        kept, output = super().kept_bytes(micro_batch), self.linear_proj.input_bytes(micro_batch)
        first, second = self.first_linears
        if kept[first]:
            kept[second] = 0
        return {**kept, "linear_proj": output}


@dataclass(frozen=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention in which a query attends only to keys that an indexer chooses: the layer's own, or that of an
    earlier layer."""

    @classmethod
    def _core(cls, config: ModelConfig, number: int, sizes: tuple[Any, ...]) -> CoreAttention:
        return SparseAttention.of(config, number, sizes)

    def kept_for_others(self, micro_batch: MicroBatch) -> int:
        core = self.core_attention
        assert isinstance(core, SparseAttention)
        return core.chosen_bytes(micro_batch) if core.serves_others else 0


def _core_sizes(config: ModelConfig, number: int, query_size: int) -> tuple[Any, ...]:
    heads, form = config.num_attention_heads, ScoreForm.of(config, number)
    return heads, heads, query_size, config.multi_latent_attention.v_head_dim, score_scale(config, query_size), form


def score_scale(config: ModelConfig, query_size: int) -> float:
    """The factor of scores: that of --query-pre-attn-scalar or, without, m^2 / sqrt(query_size) with m YaRN's magnitude
    by --mscale-all-dim, whatever the kind of rotary positions; times --key-multiplier. query_size: channels of a
    query's head, plain and rotary ones."""
    magnitude = yarn_magnitude(config.rotary_factor, config.rope_scaling.mscale_all_dim)
    return config.scales.of_scores(magnitude**2 / sqrt(query_size))
