"""Options that bound attention's scores."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class QKClipConfig(Config):
    """Weights of queries and keys that are scaled down after an update, head by head, where a step's largest score was
    too large (MuonClip; Kimi K2, 2025, section 2.1)."""

    enabled: bool = option("--qk-clip", False, of="run")
    """Scale these weights down, so that the step's largest scores would be at most the threshold."""
    alpha: float = option("--qk-clip-alpha", 0.5, at_least=0, at_most=1, of="run")
    """Exponent of the factor for queries' weights; keys' have the factor to 1 - alpha."""
    threshold: float = option("--qk-clip-threshold", 100.0, above=0, of="run")
    """Largest score that is left alone; the factor is this divided by the head's largest score."""
    log_largest: bool = option("--log-max-attention-logit", False, of="run")
    """Log the largest score of a step; with --qk-clip it is logged in any case."""

    @property
    def measures(self) -> bool:
        """Whether attention reports its largest scores."""
        return self.enabled or self.log_largest
