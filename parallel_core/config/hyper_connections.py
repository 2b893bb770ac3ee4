"""Options of several residual streams in the place of one."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class HyperConnectionsConfig(Config):
    """Options of several residual streams, which attention and feed-forward blocks read and write by learnt weights
    (mHC, Xie et al., 2026)."""

    enabled: bool = option("--enable-mhc", False)
    """Give layers several residual streams."""
    streams: int = option("--hc-mult", 4, at_least=1)
    """Number of residual streams."""
    iterations: int = option("--hc-sinkhorn-iters", 20, at_least=1)
    """Times that the rows of the weights between streams, at first by softmax, and then their columns are divided by
    their sums."""
    epsilon: float = option("--hc-eps", 1e-6, above=0)
    """Added to the weights that blocks read with, to the weights between streams, and to the sums that divide these."""
    initial_scale: float = option("--mhc-init-gating-factor", 0.01, at_least=0, of="run")
    """First value of the factor of those parts of the weights that depend on the streams."""
