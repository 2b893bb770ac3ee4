"""Choices of keys that travel beside hidden states, to a pipeline stage that begins with a layer that shares one."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config import ModelConfig
from parallel_core.partition import chunk_layers


@dataclass(frozen=True)
class CarriedChoice:
    """The positions of each token's chosen keys, as two channels each behind those of the hidden states: position //
    256 and position % 256, which every type holds exactly up to 65536 tokens."""

    layer: int
    """Global number, from 0, of the layer whose indexer chose."""
    count: int
    """The number of chosen positions of a token."""

    @property
    def channels(self) -> int:
        """The number of channels behind those of the hidden states."""
        return 2 * self.count

    @classmethod
    def into(cls, config: ModelConfig, virtual: int) -> CarriedChoice | None:
        """The choice of keys that chunk `virtual`, counted from 0 in the order of the model, is sent by the chunk
        before; one without layers is sent what the next one is. None without sparse attention or where it is that of
        compressed attention, for the model's first chunk, for one whose first layer chooses for itself, where every
        query sees all keys, and where there is no such chunk."""
        sparse, parallel = config.sparse_attention, config.parallel_config
        placement = parallel.placement
        if not sparse.enabled or config.compressed_attention.enabled or sparse.dsa_indexer_topk >= config.seq_length:
            return None
        if not 0 < virtual < placement.stages * placement.chunks:
            return None
        stage, chunk = placement.place(virtual)
        numbers = [n for n in chunk_layers(config, parallel)[chunk][stage] if n not in (parallel.noop_layers or ())]
        if not numbers:
            return cls.into(config, virtual + 1)
        if sparse.chosen_by(numbers[0], config.num_layers) == numbers[0]:
            return None
        return cls(sparse.chosen_by(numbers[0], config.num_layers), sparse.dsa_indexer_topk)

    @classmethod
    def any_in(cls, config: ModelConfig) -> bool:
        """Whether any chunk is sent a choice."""
        placement = config.parallel_config.placement
        return any(cls.into(config, virtual) for virtual in range(placement.stages * placement.chunks))
