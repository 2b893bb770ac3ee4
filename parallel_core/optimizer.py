"""The treatment of each parameter by an optimizer, and the states that it keeps: computed before anything is
allocated."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from parallel_core.buffers.layout import BufferPlan, Span, overlaps_in_order
from parallel_core.config import OptimizerConfig
from parallel_core.config.optimizer import RULES
from parallel_core.config.update_rules.rule import UpdateRule
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class Treatment:
    """The properties of a parameter that matter to an update; those that are treated alike are swept together."""

    rule: str
    """The name of its `UpdateRule`."""
    is_decayed: bool
    """Whether weight decay acts."""
    has_decoupled_lr: bool
    """The learning rate is --decoupled-lr's."""


def treatment(spec: ShardSpec, config: OptimizerConfig) -> Treatment:
    """The treatment of a parameter by the optimizer of a configuration."""
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


MAIN_PARAM = "main_param"
"""The state of a 16-bit parameter that is its value in float32 (Micikevicius et al., "Mixed Precision Training")."""


def moment_names(config: OptimizerConfig) -> tuple[str, ...]:
    """Names of the states that the optimizer keeps of any parameter."""
    return tuple(name for rule in config.update_rules for name in rule.moments(config.options_of(rule)))


class PlannedState(NamedTuple):
    """A state of some of a buffer's parameters."""

    dtype: str
    spans: tuple[Span, ...]
    """The spans of the buffer of which a rank keeps it."""

    @property
    def bytes(self) -> int:
        """Bytes of its memory."""
        return sum(span.size for span in self.spans) * DTYPES[self.dtype].bytes


def plan_states(plan: BufferPlan, owned: Sequence[Span], config: OptimizerConfig) -> dict[str, PlannedState]:
    """Name -> state of the parameters of a buffer of which a rank owns spans."""
    spans: dict[tuple[str, str], list[Span]] = {}
    segments = [*plan.segments(partial(treatment, config=config))]
    types = [state_types(segment.treatment.rule, plan.parameter_type, config) for segment in segments]
    for of_segment in types:
        for name, dtype in of_segment.items():
            spans.setdefault((name, dtype), [])
    for number, span in overlaps_in_order([segment.span for segment in segments], owned):
        for name, dtype in types[number].items():
            spans[name, dtype].append(span)
    return {name: PlannedState(dtype, tuple(kept)) for (name, dtype), kept in spans.items()}


def state_types(rule: str, parameter_type: str, config: OptimizerConfig) -> dict[str, str]:
    """Name -> type of every state of a parameter of a type; an element of the parameter has one of each."""
    main_param = {} if parameter_type == "float32" else {MAIN_PARAM: "float32"}
    return main_param | RULES[rule].moments(config.options_of(RULES[rule]))
