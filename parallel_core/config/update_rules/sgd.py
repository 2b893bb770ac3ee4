"""The optimizer SGD: gradient descent with momentum."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.config.update_rules.rule import MOMENTUM, UpdateRule


@dataclass(kw_only=True)
class SgdConfig(Config):
    """Options of the update of --optimizer sgd; weight decay is added to the gradient."""

    sgd_momentum: float = option("--sgd-momentum", 0.9, at_least=0, below=1)
    """Momentum of gradient descent; 0: each update follows its own gradient alone, and no momentum is kept."""


SGD = UpdateRule(
    name="sgd",
    options=SgdConfig,
    moments=lambda options: {MOMENTUM: "float32"} if options.sgd_momentum else {},
    other_names={"SGD": {}},
    rate_by_width=(0, 1),
)
