"""Choices of keys that travel beside hidden states, to a pipeline stage that begins with a layer that shares one."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config import ModelConfig
from parallel_core.partition import chunk_layers


@dataclass(frozen=True)
class CarriedChoice:
    """Positions of each token's chosen keys, as two channels each behind those of the hidden states: a
    position over 256, and the rest, which every type holds exactly up to 65536 tokens."""

    layer: int
    """Global number of the layer that chose, 0-based."""
    count: int
    """Positions of a token."""

    @property
    def channels(self) -> int:
        """Beside those of the hidden states."""
        return 2 * self.count

    @classmethod
    def into(cls, config: ModelConfig, virtual: int) -> CarriedChoice | None:
        """The choice that the chunk of this number, in the order of the model, receives; beyond the last one: none."""
        sparse, parallel = config.sparse_attention, config.parallel_config
        placement = parallel.placement
        if not sparse.enabled or sparse.dsa_indexer_topk >= config.seq_length:
            return None
        if not 0 < virtual < placement.stages * placement.chunks:
            return None
        stage, chunk = placement.place(virtual)
        numbers = [n for n in chunk_layers(config, parallel)[chunk][stage] if n not in (parallel.noop_layers or ())]
        if not numbers or sparse.chosen_by(numbers[0], config.num_layers) == numbers[0]:
            return None
        return cls(sparse.chosen_by(numbers[0], config.num_layers), sparse.dsa_indexer_topk)

    @classmethod
    def any_in(cls, config: ModelConfig) -> bool:
        """Whether some chunk is sent one."""
        placement = config.parallel_config.placement
        return any(cls.into(config, virtual) for virtual in range(placement.stages * placement.chunks))
