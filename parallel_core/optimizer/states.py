"""The states that an optimizer keeps of a parameter, and their types."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from parallel_core.buffers import BufferPlan, Span, overlaps
from parallel_core.config import OptimizerConfig
from parallel_core.config.optimizer import RULES
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.optimizer.treatment import treatment

MAIN_PARAM = "main_param"
"""The state of a 16-bit parameter that is its value in float32 (Micikevicius et al., "Mixed Precision Training")."""


def moment_names(config: OptimizerConfig) -> tuple[str, ...]:
    """What the optimizer keeps of some parameter or other."""
    return tuple(name for rule in config.update_rules for name in rule.moments(config.options_of(rule)))


class PlannedState(NamedTuple):
    """A state of some of a buffer's parameters."""

    dtype: str
    spans: tuple[Span, ...]
    """What of the buffer it is kept of, by a rank."""

    @property
    def bytes(self) -> int:
        """Of its memory."""
        return sum(span.size for span in self.spans) * DTYPES[self.dtype].bytes


def plan_states(plan: BufferPlan, owned: Sequence[Span], config: OptimizerConfig) -> dict[str, PlannedState]:
    """Name -> state of the parameters of a buffer of which a rank owns spans."""
    spans: dict[tuple[str, str], list[Span]] = {}
    for segment in plan.segments(partial(treatment, config=config)):
        for name, dtype in state_types(segment.treatment.rule, plan.parameter_type, config).items():
            spans.setdefault((name, dtype), []).extend(overlaps([segment.span], owned))
    return {name: PlannedState(dtype, tuple(kept)) for (name, dtype), kept in spans.items()}


def state_types(rule: str, parameter_type: str, config: OptimizerConfig) -> dict[str, str]:
    """Name -> type of every state of a parameter of a type; an element of the parameter has one of each."""
    main_param = {} if parameter_type == "float32" else {MAIN_PARAM: "float32"}
    return main_param | RULES[rule].moments(config.options_of(RULES[rule]))
