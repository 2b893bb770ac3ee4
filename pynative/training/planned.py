"""The test whether a rank's model has the parameters that the run's plan describes."""

import re
from collections.abc import Iterable

from mindspore import nn

from parallel_core.planner import Plan
from parallel_core.sharding import ShardSpec
from pynative import parallel_state
from pynative.parameter import name_parameters


def is_planned(plan: Plan, model: nn.Cell) -> bool:
    """Whether the parameters of this stage's model have the names and whole shapes that the plan has for it; the
    numbers of experts in names are not compared."""
    planned = plan.stages[parallel_state.get_pipeline_model_parallel_rank()].parameters
    return _alike(parameter.meta.spec for parameter in name_parameters(model)) == _alike(planned)


def _alike(specs: Iterable[ShardSpec]) -> list[tuple[str, tuple[int, ...]]]:
    """Sorted (name, shape) of parameters, the same on all expert-parallel ranks: these differ in the numbers of their
    experts alone, of which a plan has the first rank's."""
    return sorted((re.sub(r"local_experts\.\d+", "local_experts", spec.name), spec.shape) for spec in specs)
