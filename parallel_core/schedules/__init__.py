"""Pipeline schedules as values (DESIGN, decision 1).

A generator gives, per stage, the list of what it computes; `communicate` derives the sends and receives; `check`
proves the result; `pynative.pipeline_parallel.runner` executes it.
"""

from parallel_core.schedules.actions import Backward, Exchange, Forward, Transfer, WeightGrad
from parallel_core.schedules.check import check
from parallel_core.schedules.communicate import communicate
from parallel_core.schedules.forward_only import forward_only
from parallel_core.schedules.one_f_one_b import one_f_one_b

__all__ = [
    "Backward",
    "Exchange",
    "Forward",
    "Transfer",
    "WeightGrad",
    "check",
    "communicate",
    "forward_only",
    "one_f_one_b",
]
