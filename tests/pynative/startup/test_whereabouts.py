"""Hangs: a rank that waits for too long, or gets SIGUSR2, has all ranks say where they stand, and the first prints one
table."""

import os
import signal
import time
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from pynative.collectives import CollectiveError, connect
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.pretraining import listening, pretrain_tiny
from tests.support.two_hosts import why_not

TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"


def hang(backend, flags: str, owner: str, name: str, address: str) -> tuple[list[str], str]:
    """Train while rank 1, in a step after the first, never returns from the second call of a function; (log lines of
    this rank, text of its error)."""
    from pynative.startup import whereabouts

    own = connect(address=address)
    whereabouts.watch(own)
    module, _, inside = owner.partition(":")
    place = __import__(module, fromlist=["_"])
    for part in filter(None, inside.split(".")):
        place = getattr(place, part)
    original, calls = None, []

    from pynative.training.callbacks import Callback

    def stay(*arguments, **named):
        calls.append(name)
        while own.rank == 1 and len(calls) >= 2:
            time.sleep(0.05)
            own._waiting.raise_failure()
        return original(*arguments, **named)

    class Plant(Callback):
        """Replace the function after the first step, in which ranks may be late because they still import modules."""

        def on_step_end(self, state):
            nonlocal original
            if original is None:
                own._engine.timeout = 1.5  # seconds
                original = getattr(place, name)
                stays.enter_context(patch.object(place, name, stay))

    with listening() as said, ExitStack() as stays:
        with pytest.raises(CollectiveError) as caught:
            pretrain_tiny(own, f"{TINY} --global-batch-size 4 --train-iters 5 {flags}", callbacks=[Plant()])
        own.fail(caught.value)
        own.close()
    return [line for text in said if text.startswith("Where the ranks") for line in text.splitlines()], str(
        caught.value
    )


HANGS = (
    (TP2, "pynative.kernels", "linear_forward", "forward 0.0, decoder.layers.0.self_attention.linear_proj.weight"),
    (TP2, "pynative.kernels", "linear_weight_gradient", "backward 0.0, decoder.layers.1.mlp.linear_fc2.weight"),
    (PP2, "pynative.tape.autograd:HandedOver", "backward", "backward 1.0"),
    ("", "pynative.optimizer.flat_optimizer:FlatOptimizer", "step", "stay"),
    ("", "tests.support.layouts:Rows", "__getitem__", "run > begin > _next"),
    ("", "pynative.training.callbacks.log:LogCallback", "on_step_end", "stay"),
)
"""(layout, module or class, function in which rank 1 stays, words of its place in the table); `stay` is the name under
which the planted function runs."""


@pytest.mark.parametrize("row", range(len(HANGS)))
def test_a_rank_that_hangs_is_named_with_its_place(row):
    """The table has rank 1's layer, action of the schedule or part of the step, and the message that rank 0
    waits for."""
    flags, owner, name, place = HANGS[row]
    (said, error), _ = run(2, hang, flags, owner, name, f"hang-{row}")
    (line,) = [line for line in said if line.startswith("1 <-")]
    assert place in line and line.endswith("-"), said
    assert any("did not come 1" in line and "came 0" in line for line in said) and "rank 1" in error


def ask(backend) -> list[str]:
    """Train while rank 1 gets SIGUSR2 after the first step and sleeps for two seconds; the lines of this
    rank's table."""
    from pynative.startup import whereabouts
    from pynative.training.callbacks import Callback

    whereabouts.watch(backend)

    class Signal(Callback):
        def on_step_end(self, state):
            if backend.rank == 1 and state.iteration == 1:
                os.kill(os.getpid(), signal.SIGUSR2)
                time.sleep(2)

    with listening() as said:
        state = pretrain_tiny(backend, f"{TINY} --global-batch-size 4", callbacks=[Signal()])
        backend.roll_call.close()
    assert state.iteration == 2
    return [line for text in said if text.startswith("Where the ranks") for line in text.splitlines()]


@pytest.mark.parametrize(
    "apart", [False, pytest.param(True, marks=pytest.mark.skipif(bool(why_not()), reason="no hosts"))]
)
def test_a_signal_to_one_rank_shows_all_and_ends_nothing(apart):
    """SIGUSR2 to rank 1: rank 0 prints the table once, also from another host, and training goes on to its end."""
    said, _ = run(2, ask, between_hosts=apart)
    assert sum(line.startswith("rank") for line in said) == 1
    (line,) = [line for line in said if line.startswith("1 ")]
    assert "on_step_end" in line and any(line.startswith("0 ") for line in said)
