"""The states that an optimizer keeps of a parameter, and their types."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from parallel_core.buffers import BufferPlan, Span, overlaps
from parallel_core.config import OptimizerConfig
from parallel_core.config.optimizer import STATE_TYPES
from parallel_core.dtypes import DTYPES
from parallel_core.optimizer.treatment import treatment

MAIN_PARAM = "main_param"
"""The state of a 16-bit parameter that is its value in float32 (Micikevicius et al., "Mixed Precision Training")."""

MOMENTUM = "momentum_buffer"
EXP_AVG, EXP_AVG_SQ = "exp_avg", "exp_avg_sq"
PMA_WEIGHT = "pma_weight"
"""The average of weights that is to replace them (`PmaConfig`)."""


def moment_types(rule: str, config: OptimizerConfig) -> dict[str, str]:
    """Name -> type of what a rule keeps beside the weights."""
    if rule != "adam":
        return {MOMENTUM: "float32"}
    asked = ("fp32", "fp32")
    if config.use_precision_aware_optimizer:
        asked = (config.exp_avg_dtype, config.exp_avg_sq_dtype)
    moments = dict(zip((EXP_AVG, EXP_AVG_SQ), map(STATE_TYPES.__getitem__, asked), strict=True))
    return moments if config.pma.pma_fused_algo is None else {**moments, PMA_WEIGHT: "float32"}


def moment_names(config: OptimizerConfig) -> tuple[str, ...]:
    """What the optimizer keeps of some parameter or other; Muon has Adam beside it."""
    rules = dict.fromkeys((config.optimizer_type, "adam" if config.optimizer_type == "muon" else config.optimizer_type))
    return tuple(name for rule in rules for name in moment_types(rule, config))


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
    return main_param | moment_types(rule, config)
