"""What an optimizer does to each parameter, and which states it keeps of it: computed before anything is allocated."""

from parallel_core.optimizer.states import (
    EXP_AVG,
    EXP_AVG_SQ,
    MAIN_PARAM,
    MOMENTUM,
    PMA_WEIGHT,
    PlannedState,
    moment_names,
    plan_states,
    state_types,
)
from parallel_core.optimizer.treatment import Treatment, is_decayed, treatment

__all__ = [
    "EXP_AVG",
    "EXP_AVG_SQ",
    "MAIN_PARAM",
    "MOMENTUM",
    "PMA_WEIGHT",
    "PlannedState",
    "Treatment",
    "is_decayed",
    "moment_names",
    "plan_states",
    "state_types",
    "treatment",
]
