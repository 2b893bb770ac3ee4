"""An fp16 run on two replicas, whose gradients overflow in other steps than on one, as each replica averages before
they sum."""

import json
import math

from tests.parity.test_goldens import script, train
from tests.support.distributed import run
from tests.support.goldens import golden

SKIPPED = [1, 2, 3, 9, 10, 14, 16, 21]
"""Iterations that Megatron-Core 0.16.1 skips on two replicas of this case."""


def test_steps_are_skipped_where_megatron_skips(tmp_path):
    """Gradients of fp16 on two replicas overflow in exactly the iterations that Megatron skips."""
    case, tool = golden("gpt2_fp16"), script()
    run(2, train, str(case), str(tmp_path), tool.case_flags(case))
    norms = [step["grad_norm"] for step in json.loads((tmp_path / tool.OUR_CURVE).read_text())]
    overflowed = [norm is None or not math.isfinite(norm) for norm in norms]
    assert [iteration for iteration, is_skipped in enumerate(overflowed, start=1) if is_skipped] == SKIPPED
