"""Options that bound attention's scores, or log the largest."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class QKClipConfig(Config):
    """Options of scaling weights of queries and keys down after an update, head by head, where a step's largest score
    was too large (MuonClip; Kimi K2, 2025, section 2.1), and of logging the largest score."""

    enabled: bool = option("--qk-clip", False, of="run")
    """Scale weights of queries and keys down after an update, head by head, so that the step's largest scores would
    have been at most --qk-clip-threshold."""
    alpha: float = option("--qk-clip-alpha", 0.5, at_least=0, at_most=1, of="run")
    """alpha: queries' weights are multiplied by f^alpha and keys' by f^(1 - alpha), f the threshold over the head's
    largest score."""
    threshold: float = option("--qk-clip-threshold", 100.0, above=0, of="run")
    """Largest score of a head that leaves its weights alone; a larger one is brought down to this."""
    log_largest: bool = option("--log-max-attention-logit", False, of="run")
    """Log the largest score of a step; with --qk-clip it is logged in any case."""

    @property
    def measures(self) -> bool:
        """Whether attention reports its largest scores."""
        return self.enabled or self.log_largest
