"""Whether a rank's model is the one that a plan is of."""

from mindspore import nn

from parallel_core.planner import Plan
from pynative import parallel_state
from pynative.parameter import name_parameters


def is_planned(plan: Plan, model: nn.Cell) -> bool:
    """Whether the model is the configuration's, so that its memory can be predicted; a script's own model is
    another."""
    planned = plan.stages[parallel_state.get_pipeline_model_parallel_rank()].parameters
    own = sorted((parameter.meta.spec.name, parameter.meta.spec.shape) for parameter in name_parameters(model))
    return own == sorted((spec.name, spec.shape) for spec in planned)
