"""--overlap-moe-expert-parallel-comm: a forward beside a backward changes no bit, and hides the experts' messages."""

from unittest.mock import patch

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
    "messages kept by both": (
        2,
        "mixtral",
        f"--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1 {DROPOUT} "
        "--select-recompute ['moe','self_attention'] --no-mp-comm-recompute",
    ),
    "experts alone everywhere": (2, "mixtral", "--moe-token-dispatcher-type allgather --kernels ops"),
    "shared experts, pp2": (4, "latent", f"--pipeline-model-parallel-size 2 {DROPOUT} --moe-shared-expert-overlap"),
    "virtual stages": (
        4,
        "mixtral",
        f"--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 {DROPOUT} --global-batch-size 16 "
        "--use-distributed-optimizer",
    ),
    "dualpipev": (
        4,
        "mixtral",
        f"--pipeline-model-parallel-size 2 --schedules-method dualpipev {DROPOUT} --global-batch-size 16 "
        "--untie-embeddings-and-output-weights --delay-wgrad-compute",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_bit_changes(case):
    """Losses, gradients, weights and moments with and without the flag. Another micro-batch's random numbers, a weight
    gradient added twice or to the wrong sum, or mixed-up messages would show."""
    world, form, flags = CASES[case]
    plain = f"{BASE} {FORMS[form]} {EP2} {flags} {STEPS}"
    np.testing.assert_equal(run(world, train, f"{plain} {OVERLAP}"), run(world, train, plain))


def waits(backend, flags: str) -> tuple[int, int]:
    """(number of waits for experts' messages, number of those during which another micro-batch had computed)."""
    from pynative.moe import token_dispatcher
    from pynative.tape import turns

    counts = [0, 0]
    give_way, pass_on = token_dispatcher.give_way, turns.Turns.pass_on

    def waiting():
        counts[0] += 1
        give_way()

    def passing(pair):
        if not pair._over[1 - pair._running]:
            counts[1] += 1
        pass_on(pair)

    with patch.object(token_dispatcher, "give_way", waiting), patch.object(turns.Turns, "pass_on", passing):
        train(backend, flags)
    return counts[0], counts[1]


def test_messages_travel_while_another_micro_batch_computes():
    """In at least 75% of the waits for experts' messages another micro-batch computed meanwhile (the ends of a step
    have none), without the flag in none."""
    flags = f"{BASE} {FORMS['mixtral']} {EP2} --global-batch-size 16 --train-iters 1"
    for waited, hidden in run(2, waits, f"{flags} {OVERLAP}"):
        assert waited > 90 and hidden >= 0.75 * waited
    assert [hidden for _, hidden in run(2, waits, flags)] == [0, 0]
