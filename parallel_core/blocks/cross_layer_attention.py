"""Attention to keys and values that neighbouring layers share ("Cross-Layer Attention", Brandon et al., 2024).

n heads, d head size, t tensor-parallel, u Ulysses size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from parallel_core.blocks.attention import Attention
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.config import ModelConfig
from parallel_core.messages import Message
from parallel_core.recompute.parts import Part


@dataclass(frozen=True)
class CrossLayerAttention(Attention):
    """Attention whose keys and values, as linear_qkv gives them, later layers have as well, or an earlier one has made.

    Each layer turns and norms the keys by itself. Of a layer without keys of its own linear_qkv gives queries alone.
    """

    makes_keys: bool = True
    """Whether keys and values are its own."""
    serves_next: bool = False
    """Whether the next layer has them, too."""

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> CrossLayerAttention:
        """The configuration's, of the layer of this global number, 0-based."""
        plain = Attention.of(config, number)
        block = cls(
            **{field.name: getattr(plain, field.name) for field in fields(Attention)},
            makes_keys=not config.shares_keys(number),
            serves_next=config.shares_keys(number + 1),
        )
        if block.makes_keys:
            return block
        width, bias = config.num_attention_heads * config.kv_channels, config.qkv_has_bias
        linear = Linear.column(config, config.hidden_size, width, bias=bias, unit=width // config.num_query_groups)
        return replace(block, linear_qkv=linear)

    def parts(self) -> tuple[Part, ...]:
        """The parts but the whole: a second run of it would give later layers other keys than its first."""
        return tuple(part for part in super().parts() if part.path)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """The bytes that it keeps and the layer that has made them does not keep already: of values that no exchange
        has copied nothing."""
        kept, core = super().kept_bytes(micro_batch), self.core_attention
        if self.makes_keys or micro_batch.context.ulysses > 1:
            return kept
        heads = core.local_groups(micro_batch.tensor)
        shared = micro_batch.tokens * heads * micro_batch.item_size * core.value_size
        return {**kept, "core_attention": kept["core_attention"] - shared}

    def _shared_groups(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """None where the keys are an earlier layer's: every rank has the queries that it needs."""
        return super()._shared_groups(micro_batch) if self.makes_keys else iter(())
