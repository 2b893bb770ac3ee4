"""--overlap-moe-expert-parallel-comm: a forward beside a backward changes no bit, and hides the experts' messages."""

import numpy as np
import pytest

from tests.pynative.moe.test_layouts import EP2, FORMS
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import STEPS, train

OVERLAP = "--overlap-moe-expert-parallel-comm"
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1"
BASE = f"{TINY} --num-layers 4"
CASES = {
    "ep2": (2, "mixtral", f"{DROPOUT} --global-batch-size 16"),
    "weight gradients delayed": (2, "mixtral", f"{DROPOUT} --delay-wgrad-compute --overlap-grad-reduce"),
    "a part computed again": (2, "latent", "--recompute-granularity selective --recompute-modules moe layernorm"),
    "experts alone everywhere": (2, "mixtral", "--moe-token-dispatcher-type allgather --kernels ops"),
    "shared experts, pp2": (4, "latent", f"--pipeline-model-parallel-size 2 {DROPOUT} --moe-shared-expert-overlap"),
    "virtual stages": (
        4,
        "mixtral",
        f"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 {DROPOUT} --use-distributed-optimizer "
        "--global-batch-size 16",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_bit_changes(case):
    """Losses, gradients, weights and moments: a random stream of another micro-batch, a weight gradient added twice or
    into another micro-batch's sum, or a message that meets another one would show."""
    world, form, flags = CASES[case]
    plain = f"{BASE} {FORMS[form]} {EP2} {flags} {STEPS}"
    np.testing.assert_equal(run(world, train, f"{plain} {OVERLAP}"), run(world, train, plain))
