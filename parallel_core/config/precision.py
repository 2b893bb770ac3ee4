"""16-bit training: which type, and the loss scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, Unknown, option
from parallel_core.findings import Finding


@dataclass(kw_only=True)
class PrecisionConfig(Config):
    """The type that the network computes in, and how a loss scale adapts."""

    bf16: bool = option("--bf16", False)
    """Compute in bfloat16 with float32 master weights."""
    fp16: bool = option("--fp16", False)
    """Compute in float16 with float32 master weights and a loss scale."""
    loss_scale: float | None = option("--loss-scale", None, at_least=0)
    """Fixed loss scale; none or 0: it adapts."""
    loss_scale_value: float = option("--initial-loss-scale", 2.0**32, above=0)
    """First value of an adapting loss scale."""
    loss_scale_window: float = option("--loss-scale-window", 1000.0, above=0)
    """Clean steps after which the scale grows."""
    max_loss_scale_window: int | None = option("--max-loss-scale-window", None, at_least=1)
    """The window itself adapts, up to this (the earlier system's adaptive loss scale)."""
    min_loss_scale_window: int | None = option("--min-loss-scale-window", None, at_least=1)
    """And down to this."""
    loss_scale_factor: float = option("--loss-scale-factor", 2.0, above=1)
    """By how much the scale grows, and shrinks on overflow."""
    consecutive_hysteresis: bool = option("--consecutive-hysteresis", False)
    """Every clean step restores the overflows that are let through before the scale shrinks."""
    loss_scale_hysteresis: int = option("--hysteresis", 2, at_least=1)
    """Overflows before the scale shrinks."""
    min_loss_scale: float = option("--min-loss-scale", 1.0, above=0)
    """The scale never falls below this."""

    def derive(self) -> None:
        if not isinstance(self.loss_scale, Unknown) and self.loss_scale == 0:
            self.loss_scale = None

    def rules(self) -> Iterator[Finding]:
        if self.bf16 and self.fp16:
            yield Finding(
                "--fp16", None, "does not go with --bf16: only one of the two can be the compute type", "remove one"
            )
        if self.loss_scale_value < self.min_loss_scale:
            yield Finding(
                "--initial-loss-scale",
                self.loss_scale_value,
                f"must not be less than --min-loss-scale {self.min_loss_scale:g}",
                "raise it",
            )
