"""Attention to chosen keys alone (DeepSeek-V3.2, 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class SparseAttentionConfig(Config):
    """DeepSeek sparse attention (DeepSeek-V3.2, 2025): an indexer chooses the keys that a query attends to."""

    variant: str | None = option("--experimental-attention-variant", None, choices=("dsa",))
    """dsa: queries of latent attention see the keys that an indexer chooses."""
    dsa_indexer_n_heads: int = option("--dsa-indexer-n-heads", 64, at_least=1, of="shapes")
    """Heads of the indexer."""
    dsa_indexer_head_dim: int = option("--dsa-indexer-head-dim", 128, at_least=1, of="shapes")
    """Width of one of them."""
    dsa_indexer_topk: int = option("--dsa-indexer-topk", 2048, at_least=1)
    """Keys that a query sees at most."""
    dsa_indexer_loss_coeff: float = option("--dsa-indexer-loss-coeff", None, at_least=0, of="run")
    """Coefficient of the loss that trains the indexer: how far its choice is from attention's probabilities."""
    dsa_indexer_use_sparse_loss: bool = option("--dsa-indexer-use-sparse-loss", False, of="run")
    """That loss is of the chosen keys alone, instead of all."""

    @property
    def enabled(self) -> bool:
        """Whether there is an indexer."""
        return self.variant is not None
