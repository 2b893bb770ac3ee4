"""How an optimizer treats a parameter: by which rule, with weight decay or without, at which learning rate."""

from dataclasses import dataclass

from parallel_core.config import OptimizerConfig
from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class Treatment:
    """What an update asks about parameters; those that are treated alike are swept together."""

    rule: str
    """adam, sgd or muon."""
    is_decayed: bool
    """Whether weight decay acts."""
    has_decoupled_lr: bool
    """The learning rate is --decoupled-lr's."""


def treatment(spec: ShardSpec, config: OptimizerConfig) -> Treatment:
    """How the optimizer of a configuration treats a parameter."""
    is_outer = spec.role == "embedding or output"
    return Treatment(_rule(spec, config), is_decayed(spec, config), is_outer and config.decoupled_lr is not None)


def _rule(spec: ShardSpec, config: OptimizerConfig) -> str:
    """Muon is for matrices; embedding and output layer look up and choose rows, so Adam updates them like vectors."""
    if config.optimizer_type != "muon":
        return config.optimizer_type
    is_matrix = len(spec.shape) == 2 and spec.role != "embedding or output"
    return "muon" if is_matrix else "adam"


def is_decayed(spec: ShardSpec, config: OptimizerConfig) -> bool:
    """Whether weight decay acts on a parameter: on what a user's list leaves, or by Megatron's rule."""
    if config.no_weight_decay_params is not None:
        return not spec.name.endswith(tuple(config.no_weight_decay_params))
    return spec.is_decayed or (config.apply_wd_to_qk_layernorm and spec.role == "head norm")
