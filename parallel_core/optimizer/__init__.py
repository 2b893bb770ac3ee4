"""What an optimizer does to each parameter, and which states it keeps of it: computed before anything is allocated."""

from parallel_core.optimizer.states import MAIN_PARAM, PlannedState, moment_names, plan_states, state_types
from parallel_core.optimizer.treatment import Treatment, is_decayed, treatment, update_rule

__all__ = [
    "MAIN_PARAM",
    "PlannedState",
    "Treatment",
    "is_decayed",
    "moment_names",
    "plan_states",
    "state_types",
    "treatment",
    "update_rule",
]
