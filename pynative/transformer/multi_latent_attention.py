"""Multi-head latent attention (DeepSeek-V2, 2024), heads cut over ranks, all channels of the latents on each.

s sequence, b batch, h hidden, n heads, t tensor-parallel size; of each head p plain and r rotary channels of queries
and keys, e of values; c width of the latent of keys and values; in generation S cached tokens.
"""

import enum
from typing import Any

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels, key_value_cache, parallel_state
from pynative.tensor_parallel.layers import ColumnParallelLinear, DuplicatedLinear, RowParallelLinear
from pynative.tensor_parallel.made_again import fork_made_again
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.recompute import NOTHING, run_part
from pynative.transformer.absorbed_projections import AbsorbedProjections
from pynative.transformer.attention import CoreAttention
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.norm import norm_of
from pynative.transformer.rope import angles


class MLASelfAttention(nn.Cell):
    """Down projections -> norms of the latents, if any -> up projections and rotation -> core attention -> linear_proj;
    queries may have no latent.

    Neighbouring channels rotate as a pair and stay where they are; Megatron puts the pairs' first halves before their
    second ones, in queries and keys alike, which changes no score.
    """

    block_type: type[blocks.LatentAttention] = blocks.LatentAttention

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        attn_mask_type: enum.Enum = AttnMaskType.causal,
        block: blocks.LatentAttention | None = None,
        recomputed: CellRecompute = NOTHING,
    ) -> None:
        super().__init__()
        self.recomputed = recomputed
        block = self.block_type.of(config, layer_number - 1) if block is None else block
        core = block.core_attention
        self.boundary = Boundary.of(config)
        self.heads = core.local_heads(parallel_state.get_tensor_model_parallel_world_size())
        self.value_size, self.rotary_start = core.value_size, core.query_key_size - block.rotary_size
        self.latent_widths = (block.linear_kv_up_proj.input_size, block.rotary_size)
        self.rotary = block.rotary
        self.query_scale, self.key_value_scale = block.query_scale, block.key_value_scale
        self.linear_q_proj = _linear_of(ColumnParallelLinear, block.linear_q_proj, config)
        self.linear_q_down_proj = _linear_of(DuplicatedLinear, block.linear_q_down_proj, config)
        self.q_layernorm = norm_of(block.q_layernorm, config)
        self.linear_q_up_proj = _linear_of(ColumnParallelLinear, block.linear_q_up_proj, config)
        self.linear_kv_down_proj = DuplicatedLinear.of(block.linear_kv_down_proj, config=config)
        self.kv_layernorm = norm_of(block.kv_layernorm, config)
        self.linear_kv_up_proj = ColumnParallelLinear.of(block.linear_kv_up_proj, config=config)
        self.core_attention = self._core_cell(config, layer_number, attn_mask_type, core)
        self.linear_proj = RowParallelLinear.of(block.linear_proj, config=config)

    def _core_cell(self, config: ModelConfig, layer_number: int, attn_mask_type: enum.Enum, core: Any) -> nn.Cell:
        return CoreAttention(config, layer_number, attn_mask_type, core)

    @property
    def linear_q(self) -> nn.Cell:
        """The linear that makes the heads of queries, from their latent or from hidden states."""
        linear = self.linear_q_up_proj if self.linear_q_proj is None else self.linear_q_proj
        assert linear is not None
        return linear

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
        *shared: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, the bias [h] still to be added or
        None). attention_mask, document_starts: as `CoreAttention` takes them. shared: the choices of keys that layers
        of sparse attention share."""
        for_queries, for_keys = fork_made_again(hidden_states)
        query_latent = self.compress_query(for_queries)
        latent, rotary_key = kernels.split_features(self.linear_kv_down_proj(for_keys)[0], self.latent_widths)
        latent = _scaled(latent if self.kv_layernorm is None else self.kv_layernorm(latent), self.key_value_scale)
        rotary_key = self.boundary.entered(rotary_key)
        heads = run_part(self, "up_projections", self.project_up, query_latent, latent, rotary_key)
        out = self._attended(heads, (attention_mask, document_starts), hidden_states, query_latent, *shared)
        return run_part(self, "linear_proj", self.linear_proj, out)

    def _attended(
        self,
        heads: tuple[Tensor, ...],
        masking: tuple[Tensor | None, Array | None],
        hidden_states: Tensor,
        query_latent: Tensor,
        *shared: Any,
    ) -> Tensor:
        """Attention's output [s, b, n/t x e], of heads (queries, keys, values) and masking (mask, document starts)."""
        absorbed, attended = self._absorbed(), run_part(self, "core_attention", self.core_attention, *heads, *masking)
        return attended if absorbed is None else absorbed.values(attended)

    def compress_query(self, hidden_states: Tensor) -> Tensor:
        """The latent of the queries, after its norm and times its factor, if it has these; where queries are not
        compressed, the hidden states themselves."""
        if self.linear_q_down_proj is None:
            return hidden_states
        latent, _ = self.linear_q_down_proj(hidden_states)
        return _scaled(latent if self.q_layernorm is None else self.q_layernorm(latent), self.query_scale)

    def project_up(self, query_latent: Tensor, latent: Tensor, rotary_key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q and k [s, b, n/t, p + r], of p plain and r rotary channels, and v [s, b, n/t, e], from the latents (with
        sequence parallelism this rank's shards of them) and the rotary key [s, b, r] of all tensor-parallel ranks'
        tokens. With a cache k and v are those of all S cached tokens; in a forward after the first one, unless the up
        projection has an adapter or a bias, both are the cached latents, of width c, with their rotary keys, [S, b, 1,
        c + r], and q is made to be multiplied with these, [s, b, n/t, c + r]."""
        cos, sin = angles(self.rotary, self.boundary.inside().positions(rotary_key.shape[0]))
        rows, _ = self.linear_q(query_latent)
        query = kernels.rotary(kernels.as_heads(rows, self.heads), cos, sin, True, self.rotary_start)
        shared = kernels.rotary(kernels.as_heads(rotary_key, 1), cos, sin, True)
        cache = key_value_cache.current()
        if cache is not None:
            joined = kernels.join_features(kernels.as_heads(latent, 1), shared)
            (kept,) = cache.keep(self.core_attention.layer_number, self.core_attention.rule.form, joined)
            absorbed = self._absorbed()
            if absorbed is not None:
                return absorbed.query(query), kept, kept
            latent, shared = kernels.split_features(kept, self.latent_widths)
            latent = latent.reshape(*latent.shape[:2], -1)
        rows, _ = self.linear_kv_up_proj(latent)
        return query, *kernels.latent_keys_values(rows, shared, self.heads, self.value_size)

    def _absorbed(self) -> AbsorbedProjections | None:
        """The projections that act on queries and sums of latents, for a token after cached ones; None where keys and
        values are made: in training, in a first forward, or with an adapter or a bias on their projection."""
        cache, linear = key_value_cache.current(), self.linear_kv_up_proj
        if cache is None or not cache.continues or linear.adapter is not None or linear.bias is not None:
            return None
        weight = kernels.cast(linear.weight, linear.compute_dtype)
        return AbsorbedProjections(weight, self.heads, self.value_size, self.latent_widths)


def _scaled(latent: Tensor, scale: float) -> Tensor:
    return latent if scale == 1.0 else kernels.scale(latent, scale)


def _linear_of(
    cell: type[ColumnParallelLinear | DuplicatedLinear], block: blocks.Linear | None, config: ModelConfig
) -> nn.Cell | None:
    return None if block is None else cell.of(block, config=config)
