"""How an optimizer treats a parameter: by which rule, with weight decay or without, at which learning rate."""

from dataclasses import dataclass

from parallel_core.config import OptimizerConfig
from parallel_core.config.update_rules.rule import UpdateRule
from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class Treatment:
    """What an update asks about parameters; those that are treated alike are swept together."""

    rule: str
    """The name of its `UpdateRule`."""
    is_decayed: bool
    """Whether weight decay acts."""
    has_decoupled_lr: bool
    """The learning rate is --decoupled-lr's."""


def treatment(spec: ShardSpec, config: OptimizerConfig) -> Treatment:
    """How the optimizer of a configuration treats a parameter."""
    is_outer = spec.role == "embedding or output"
    return Treatment(
        update_rule(spec, config).name, is_decayed(spec, config), is_outer and config.decoupled_lr is not None
    )


def update_rule(spec: ShardSpec, config: OptimizerConfig) -> UpdateRule:
    """The rule that a parameter is updated by."""
    named, *rest = config.update_rules
    return named if not rest or named.treats(spec) else rest[0]


def is_decayed(spec: ShardSpec, config: OptimizerConfig) -> bool:
    """Whether weight decay acts on a parameter: on what a user's list leaves, or by Megatron's rule."""
    if config.no_weight_decay_params is not None:
        return not spec.name.endswith(tuple(config.no_weight_decay_params))
    return spec.is_decayed or (config.apply_wd_to_qk_layernorm and spec.role == "head norm")
