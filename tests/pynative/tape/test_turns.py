"""`Turns`: two computations that take turns; their order, their own state, and errors, which end both."""

import signal
import threading
import time

import pytest

from pynative.local import Local
from pynative.step_position import StepPosition, set_step_position
from pynative.tape import autograd
from pynative.tape.turns import Computation, Turns, give_way, running_thread
from pynative.tensor_parallel.random import EXPERT_PARALLEL_RNG, MODEL_PARALLEL_RNG, RNGStateTracer


def steps(name: str, count: int, seen: list[str]):
    def run():
        for step in range(count):
            seen.append(f"{name}{step}")
            give_way()
        return name

    return Computation(run)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [(3, 3, "a0 b0 a1 b1 a2 b2"), (1, 3, "a0 b0 b1 b2"), (3, 1, "a0 b0 a1 a2"), (0, 2, "b0 b1")],
)
def test_they_alternate_until_one_is_over(first, second, order):
    """Computations of different lengths alternate at each `give_way`; when one is over, the other runs to its end."""
    seen: list[str] = []
    assert Turns(steps("a", first, seen), steps("b", second, seen)).run() == ("a", "b")
    assert " ".join(seen) == order


def test_the_thread_whose_turn_it_is_is_known():
    """The thread whose turn it is is on record, so a table of where ranks stand shows its stack, not that of the one
    that waits."""
    seen = []

    def run():
        for _ in range(2):
            seen.append(running_thread() == threading.get_ident())
            give_way()

    Turns(Computation(run), Computation(run)).run()
    assert seen == [True] * 4 and running_thread() is None


def test_each_has_its_own_switches():
    """Each computation keeps its own recording switch of the tape and its own queue of deferred weight gradients across
    turns."""
    seen, queue = [], autograd.DeferredGradients()

    def first():
        with autograd.recording(True), autograd.deferred_weight_gradients(queue):
            give_way()
            seen.append((autograd.switches().records, autograd.deferred() is queue))

    def second():
        with autograd.recording(False):
            give_way()
            seen.append((autograd.switches().records, autograd.deferred()))

    posted: list[str] = []
    before = autograd.switches()
    Turns(Computation(first, lambda: posted.append("a")), Computation(second)).run()
    assert seen == [(True, True), (False, None)]
    assert posted == ["a"]
    assert autograd.switches() == before


def test_each_has_its_own_position_and_random_numbers():
    """Each keeps its step position and random streams; else a mask would be drawn twice, or recompute would take the
    other's message. Neither stays behind."""
    of_process = Local("nobody's")

    def drawing(name: str, micro_batch: int, tracer: RNGStateTracer, drawn: list):
        def run():
            set_step_position(StepPosition(micro_batch=micro_batch))
            with of_process.holding(name), tracer.rng_fork(EXPERT_PARALLEL_RNG if micro_batch else MODEL_PARALLEL_RNG):
                for _ in range(3):
                    drawn.append((of_process.value, tracer.next_key()))
                    give_way()

        return Computation(run)

    a, b, alone, tracer = [], [], [], RNGStateTracer()
    Turns(drawing("a", 0, tracer, a), drawing("b", 1, tracer, b)).run()
    drawing("a", 0, RNGStateTracer(), alone).run()
    drawing("b", 1, RNGStateTracer(), alone).run()
    assert a + b == alone and len(set(alone)) == 6
    assert of_process.value == "nobody's"
    set_step_position(StepPosition())


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_error_of_either_ends_both(which, after):
    """An error of the first or second computation is raised whole, the thread ends, and a later `give_way` returns at
    once."""

    def failing():
        for _ in range(after):
            give_way()
        raise ValueError("a rank is gone")

    computations = [steps("other", 3, []), Computation(failing)]
    pair = computations if which else computations[::-1]
    with pytest.raises(ValueError, match="a rank is gone"):
        Turns(*pair).run()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("second of two")]
    give_way()


def test_an_interrupt_ends_both():
    """Ctrl-C raises in the first computation, which waits; the second ends where it gives way next, not at its end.
    SIGUSR1 stands for SIGINT, of which MindSpore makes a SIGTERM."""
    passed = []

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)

    def interrupted():
        signal.raise_signal(signal.SIGUSR1)
        for step in range(100):
            time.sleep(0.05)
            give_way()
            passed.append(step)

    try:
        with pytest.raises(KeyboardInterrupt):
            Turns(steps("a", 3, []), Computation(interrupted)).run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(passed) < 100 and not [one for one in threading.enumerate() if one.name.startswith("second of two")]
