"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads come from one narrow latent vector.

s sequence, b batch, h hidden, n heads; of each head p plain and r rotary channels of queries and keys, e of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from parallel_core.attention.rope_scaling import yarn_magnitude
from parallel_core.attention.rotary import Rotary
from parallel_core.attention.score_form import ScoreForm
from parallel_core.blocks.attention import CoreAttention
from parallel_core.blocks.block import Block
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.norm import Norm
from parallel_core.blocks.sparse_attention import Indexer, SparseAttention
from parallel_core.messages import Message

if TYPE_CHECKING:
    from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class LatentAttention(Block):
    """Queries: linear_q_proj or, compressed, linear_q_down_proj -> q_layernorm -> linear_q_up_proj. Keys and values:
    linear_kv_down_proj -> [latent, one rotary key for all heads], latent -> kv_layernorm -> linear_kv_up_proj.

    Rows of linear_q_up_proj (linear_q_proj) are, head by head, p plain channels and r rotary ones; of linear_kv_up_proj
    p of the key and e of the value. Down projections are whole on every tensor-parallel rank: latents stay between the
    regions, so with sequence parallelism they are what travels, not hidden states.
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
    """r."""

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> LatentAttention:
        """The configuration's, of the layer of this global number, 0-based."""
        latent, heads, hidden = config.multi_latent_attention, config.num_attention_heads, config.hidden_size
        query_size, rank = latent.qk_head_dim + latent.qk_pos_emb_head_dim, latent.q_lora_rank
        key_value_size = latent.qk_head_dim + latent.v_head_dim
        normed, direct = config.qk_layernorm, rank is None
        return cls(
            Linear.column(config, hidden, heads * query_size, bias=False) if direct else None,
            None if rank is None else Linear.between(config, hidden, rank),
            None if rank is None or not normed else Norm.of_latent(config, rank),
            None if rank is None else Linear.column(config, rank, heads * query_size, bias=False),
            Linear.between(config, hidden, latent.kv_lora_rank + latent.qk_pos_emb_head_dim),
            Norm.of_latent(config, latent.kv_lora_rank) if normed else None,
            Linear.column(config, latent.kv_lora_rank, heads * key_value_size, bias=False),
            _core_attention(config, number, query_size),
            Linear.row(config, heads * latent.v_head_dim, bias=config.out_proj_has_bias),
            Rotary.of_latent_attention(config),
            latent.qk_pos_emb_head_dim,
        )

    @property
    def first_linears(self) -> tuple[str, ...]:
        """Names of the linears that have the input of all; the first of them that needs it keeps it."""
        return "linear_q_down_proj" if self.linear_q_proj is None else "linear_q_proj", "linear_kv_down_proj"

    @property
    def up_projections(self) -> tuple[str, str]:
        """Names of the linears that make heads."""
        return "linear_q_up_proj" if self.linear_q_proj is None else "linear_q_proj", "linear_kv_up_proj"

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """The rotary key is used by all heads: it enters the region, and its gradient is summed over the ranks."""
        yield from super().messages(micro_batch)
        for one in micro_batch.enter(self.rotary_size):
            yield one.within("rotary_key")
        for one in micro_batch.leave(self.rotary_size, backward=True):
            yield one.within("rotary_key")

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Queries' and keys' projections have one input, and what core attention puts out it keeps itself."""
        kept, output = super().kept_bytes(micro_batch), self.linear_proj.input_bytes(micro_batch)
        first, second = self.first_linears
        if kept[first]:
            kept[second] = 0
        return {**kept, "linear_proj": output}


def _core_attention(config: ModelConfig, number: int, query_size: int) -> CoreAttention:
    """With an indexer or without."""
    heads, form = config.num_attention_heads, ScoreForm.of(config, number)
    sizes = (heads, heads, query_size, config.multi_latent_attention.v_head_dim, score_scale(config, query_size), form)
    return (
        SparseAttention(*sizes, indexer=Indexer.of(config))
        if config.sparse_attention.enabled
        else CoreAttention(*sizes)
    )


def score_scale(config: ModelConfig, query_size: int) -> float:
    """m^2 / sqrt(p + r), m YaRN's magnitude by --mscale-all-dim, with any kind of rotary positions as in Megatron."""
    magnitude = yarn_magnitude(config.rotary_factor, config.rope_scaling.mscale_all_dim)
    return config.scales.attention or magnitude**2 / sqrt(query_size)
