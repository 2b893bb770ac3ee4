"""Pre-trained model averages: weights that are replaced by an average of themselves now and then."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class PmaConfig(Config):
    """MindFormers' PmaAdamW (Li et al., "Model Merging in Pre-training of Large Language Models", 2025): every so many
    steps weights are taken into an average, and when it has enough of them it becomes the weights, and begins anew."""

    pma_fused_algo: str | None = option("--pma-fused-algo", None, choices=("ema", "sma"))
    """An exponential average, which begins at zero, or a plain mean; none: weights are not averaged."""
    pma_fused_num: int = option("--pma-fused-num", 10, at_least=1)
    """Weights that make an average."""
    pma_interleave_step: int = option("--pma-interleave-step", 1000, at_least=1)
    """Steps from one that is taken to the next."""
    pma_ema_alpha: float = option("--pma-ema-alpha", 0.2, above=0, below=1)
    """Share of the newest in an exponential average."""
