"""Two computations that take turns: while a message of one travels, the other goes on.

Megatron's combined 1F1B lists the parts of a layer by hand. Here a computation's turn ends where it calls `give_way`,
after it has posted a message and before it waits for it: the other one runs until it does the same or ends. One runs at
a time, so the order of all operators, and of all messages, follows from the two computations alone and is the same on
all ranks that run the same two.

Each has a stack of its own, a thread's, and its own values of the tape's switches and of every `Local`. So a message
inside of a part that runs again, or a random number, belongs to the computation that asked for it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from threading import Semaphore, Thread
from typing import Any

from pynative.tape import autograd

_turns: "Turns | None" = None


def give_way() -> None:
    """`Turns.pass_on`, with its errors: let the other of two computations run, unless it is over, until it gives way in
    turn or ends. Do nothing outside of `Turns.run`."""
    if _turns is not None:
        _turns.pass_on()


def running_thread() -> int | None:
    """The identifier of the thread whose turn it is; None outside of `Turns.run`."""
    return None if _turns is None else _turns.thread


@dataclass
class Computation:
    """One of two computations that take turns: `run` computes its result, `before_giving_way` is called each time it
    gives way, before the other one runs, also if that is over."""

    run: Callable[[], Any]
    before_giving_way: Callable[[], None] = lambda: None
    """Called each time this computation gives way, before the other one runs: to do work of this rank while the message
    travels."""


class _Ended(BaseException):
    """Raised in the second computation's thread where it waits, when the first one failed; only that thread catches
    it."""


class Turns:
    """The turns of two computations. The first computation runs in the caller's thread, the second in one of its
    own."""

    def __init__(self, first: Computation, second: Computation) -> None:
        self._pair = (first, second)
        self._batons = (Semaphore(0), Semaphore(0))
        self._running = 0
        self._over = [False, False]
        self._threads: tuple[int | None, ...] = ()
        self._failed: BaseException | None = None
        self._result: Any = None

    @property
    def thread(self) -> int | None:
        """The identifier of the thread of the computation whose turn it is; to be asked for only while `run` is under
        way."""
        return self._threads[self._running]

    def pass_on(self) -> None:
        """Call this computation's `before_giving_way`, and let the other one run until it gives way or is over; then
        return to the caller. If the other one failed, then or before: the first computation raises the other's error,
        the second an exception of this module that ends its own thread."""
        own, other = self._running, 1 - self._running
        self._raise_failure(own)
        self._pair[own].before_giving_way()
        if self._over[other]:
            return
        switches = autograd.switches()
        self._hand_over(other)
        self._batons[own].acquire()
        self._running = own
        autograd.set_switches(switches)
        self._raise_failure(own)

    def _hand_over(self, to: int) -> None:
        self._batons[to].release()

    def _raise_failure(self, own: int) -> None:
        if self._failed is not None:
            raise _Ended if own else self._failed

    def run(self) -> tuple[Any, Any]:
        """Run both computations to their ends, beginning with the first; (the first's result, the second's). Raises the
        error that either raised; the other one, unless it is over, ends by an exception where it waits for its turn."""
        global _turns
        switches, (first, _) = autograd.switches(), self._pair
        thread = Thread(target=self._run_second, args=(switches,), name="second of two computations")
        thread.start()
        self._threads = (threading.get_ident(), thread.ident)
        _turns = self
        try:
            result = first.run()
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._over[0] = True
            if not self._over[1]:
                self._hand_over(1)
            thread.join()
            _turns = None
            autograd.set_switches(switches)
        self._raise_failure(0)
        return result, self._result

    def _run_second(self, switches: autograd.Switches) -> None:
        _, second = self._pair
        self._batons[1].acquire()
        self._running = 1
        try:
            self._raise_failure(1)
            autograd.set_switches(switches)
            self._result = second.run()
        except _Ended:
            pass
        except BaseException as error:  # the first computation raises any error of the second
            self._failed = error
        self._over[1] = True
        if not self._over[0]:
            self._hand_over(0)
