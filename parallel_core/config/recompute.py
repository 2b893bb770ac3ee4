"""What is computed again in the backward pass instead of being kept, in both notations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class RecomputeConfig(Config):
    """Activation recomputation (Chen et al., 2016): Megatron's flags, and the earlier system's lists by stage."""

    recompute_granularity: str | None = option("--recompute-granularity", None, choices=("selective", "full"))
    """What is computed again in the backward pass: attention's core, or whole layers."""
    recompute_method: str | None = option("--recompute-method", None, choices=("uniform", "block"))
    """Which layers a full recompute covers."""
    recompute_num_layers: int | None = option("--recompute-num-layers", None, at_least=0)
    """Layers of a recomputed group (uniform), or recomputed layers of a stage (block)."""
    recompute_modules: list[str] | None = option("--recompute-modules", None)
    """What a selective recompute covers; attention's core if not given."""

    recompute: Any = option("--recompute", None)
    """Layers to compute again in the backward pass, by stage."""
    select_recompute: Any = option("--select-recompute", None)
    """Operators to compute again in the backward pass, by stage."""
    select_comm_recompute: Any = option("--select-comm-recompute", None)
    """Collectives to run again in the backward pass, by stage."""


MEGATRON_NAMES = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
"""The options that the documents have in the model section."""
STAGE_NAMES = ("recompute", "select_recompute", "select_comm_recompute")
"""The options that the documents have in the parallel section."""
