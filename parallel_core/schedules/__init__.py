"""Pipeline schedules as values.

A generator gives the list of computations of each stage, `communicate` adds sends and receives, `check` verifies the
result, `simulate` says how long it takes, `draw` shows it: `python -m mapping plan schedule --help`.
"""

from parallel_core.schedules.actions import Backward, Exchange, Forward, Pair, Placement, Transfer, WeightGrad
from parallel_core.schedules.check import check
from parallel_core.schedules.communicate import communicate
from parallel_core.schedules.dualpipev import dualpipe_v
from parallel_core.schedules.folded import v_half, v_min, zb_v
from parallel_core.schedules.generators import (
    FOLDED,
    GENERATORS,
    SPLIT,
    TIMED,
    combined_1f1b,
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    order,
    zb_h1,
    zb_h2,
)
