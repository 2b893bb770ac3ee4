"""Attention to keys and values that neighbouring layers share ("Cross-Layer Attention", Brandon et al., 2024)."""

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
    """Attention in a model whose neighbouring layers share keys and values, as linear_qkv gives them: a layer either
    makes them (`makes_keys`), perhaps for later layers, too, or takes them from an earlier one.

    Norm and rotation of keys, where the model has them, are each layer's own. linear_qkv of a layer that takes keys
    gives queries alone.
    """

    makes_keys: bool = True
    """Whether the layer makes keys and values itself, not an earlier one."""
    serves_next: bool = False
    """Whether the next layer takes the same keys and values."""

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> CrossLayerAttention:
        """Attention of the configuration's layer with this global number, from 0."""
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
        """The parts that may be recomputed, without the attention as a whole, whose keys other layers may use."""
        return tuple(part for part in super().parts() if part.path)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Path -> bytes kept for the backward. In a layer that takes an earlier one's keys and values, core attention's
        values do not count, since the earlier layer keeps them, unless Ulysses has copied them; its keys count."""
        kept, core = super().kept_bytes(micro_batch), self.core_attention
        if self.makes_keys or micro_batch.context.ulysses > 1:
            return kept
        heads = core.local_groups(micro_batch.tensor)
        shared = micro_batch.tokens * heads * micro_batch.item_size * core.value_size
        return {**kept, "core_attention": kept["core_attention"] - shared}

    def _shared_groups(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """No messages where the keys are an earlier layer's: every rank has the queries that it needs."""
        return super()._shared_groups(micro_batch) if self.makes_keys else iter(())
