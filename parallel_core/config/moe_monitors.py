"""What is told of a run's experts."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class MoEMonitorConfig(Config):
    """What is logged and recorded of experts."""

    moe_log_drop_rate: bool = option("--moe-log-drop-rate", False, of="run")
    """Log the share of choices that each layer's experts drop, as they are dropped."""
    moe_drop_rate_capacity_factor: float | None = option("--moe-drop-rate-capacity-factor", None, above=0, of="run")
    """Log beside it the share that would be dropped with this factor."""
    moe_per_layer_logging: bool = option("--moe-per-layer-logging", False, of="run")
    """Log auxiliary losses of each layer, not only their mean."""
    save_token_distribution: bool = option("--save-token-distribution", False, of="run")
    """Record how many tokens each expert of a layer receives, in a file for each layer and step."""
    summary_dir: str | None = option("--summary-dir", None, of="run")
    """Where; by default token_distribution in --save."""
    summary_collect_freq: int = option("--summary-collect-freq", 1, at_least=1, of="run")
    """Every how many iterations."""
