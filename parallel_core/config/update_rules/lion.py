"""The optimizer Lion: the sign of an average of gradients."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.config.update_rules.rule import UpdateRule


@dataclass(kw_only=True)
class LionConfig(Config):
    """Options of the update of --optimizer lion (Chen et al., "Symbolic Discovery of Optimization Algorithms",
    2023)."""

    lion_beta1: float = option("--lion-beta1", 0.95, at_least=0, below=1)
    """Share of Lion's average of gradients in the direction of an update; the gradient has the rest."""
    lion_beta2: float = option("--lion-beta2", 0.98, at_least=0, below=1)
    """Decay rate of Lion's average of gradients."""


LION = UpdateRule(name="lion", options=LionConfig, moments=lambda options: {"exp_avg": "float32"})
