"""Low-rank adapters (Hu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class LoraConfig(Config):
    """Rank, scale and places of the adapters; rank 0: none, and all weights are trained."""

    lora_rank: int = option("--lora-r", 0, at_least=0)
    """Inner size of an adapter."""
    lora_alpha: float = option("--lora-alpha", 32.0, above=0)
    """An adapter's output is multiplied by this over its rank."""
    lora_dropout: float = option("--lora-dropout", 0.0, at_least=0, below=1)
    """Dropout on an adapter's input."""
    target_modules: list[str] | None = option("--lora-target-modules", None)
    """Names of the linears that get an adapter."""
    lora_load: str | None = option("--lora-load", None)
    """Checkpoint of the adapters."""

    @property
    def use_lora(self) -> bool:
        """Whether there are adapters."""
        return self.lora_rank > 0
