"""The handing of jobs to a helper thread that waits for them without sleeping.

To wake a thread that sleeps takes 0.05 ms and more, and some milliseconds on a machine that others use, which may have
its core; to hand a job to one that is awake takes less. The helper waits in a spin lock of the C library
(pthread_spin_lock, POSIX), without the GIL.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

Job = Callable[[], object]


@cache
def _functions() -> tuple[Any, Any, Any] | None:
    """(pthread_spin_init, pthread_spin_lock, pthread_spin_unlock), of which the second releases the GIL and the others
    do not; None without them (macOS)."""
    if not hasattr(ctypes.CDLL(None), "pthread_spin_lock"):
        return None
    free, keeping = ctypes.CDLL(None), ctypes.PyDLL(None)
    functions = keeping.pthread_spin_init, free.pthread_spin_lock, keeping.pthread_spin_unlock
    functions[0].argtypes = (ctypes.c_void_p, ctypes.c_int)
    for function in functions[1:]:
        function.argtypes = (ctypes.c_void_p,)
    return functions


def can_spin() -> bool:
    """Whether the C library has spin locks."""
    return _functions() is not None


class _Signal:
    """A signal that one thread gives and another waits for. Given twice before it is waited for, it counts once."""

    def __init__(self) -> None:
        functions = _functions()
        assert functions is not None, "ask can_spin() first"
        initialize, self._lock, self._unlock = functions
        self._word = ctypes.c_int()
        self._address = ctypes.addressof(self._word)
        initialize(self._address, 0)
        self.wait()

    def wait(self) -> None:
        """Wait until the signal is given, not at all if it was given since the last wait, and reset it."""
        self._lock(self._address)

    def give(self) -> None:
        """Give the signal, so that the thread that waits for it, now or later, goes on."""
        self._unlock(self._address)


class AwakeHelper:
    """The queue of one job between a thread that hands jobs over and one that runs `serve`."""

    def __init__(self) -> None:
        self._handed, self._done = _Signal(), _Signal()
        self._jobs: list[Job | None] = []  # at most one job; the GIL decides which thread takes it
        self._error: BaseException | None = None

    def hand(self, job: Job | None) -> None:
        """Hand over the next job; `finish` of the job before must have returned. None, for which `finish` is
        not called, ends `serve`."""
        self._jobs.append(job)
        self._handed.give()

    def finish(self) -> BaseException | None:
        """Wait for the job to end; return the error that it raised, or None. If the helper has not begun it (its core
        may be busy with others), the calling thread does it."""
        try:
            job = self._jobs.pop()
        except IndexError:
            self._done.wait()
            return self._error
        return None if job is None else error_of(job)

    def serve(self) -> None:
        """Do the jobs that are handed over, but for those that `finish` did, one after the other, until None is handed
        over."""
        while True:
            self._handed.wait()
            try:
                job = self._jobs.pop()
            except IndexError:
                continue
            if job is None:
                return
            self._error = error_of(job)
            self._done.give()


def error_of(job: Job) -> BaseException | None:
    """Do a job and return the error that it raised (for the thread that waits for the job), or None."""
    try:
        job()
    except BaseException as error:
        return error
    return None
