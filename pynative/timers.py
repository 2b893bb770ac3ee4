"""Timers of the parts of a step, which can also record each run of a part for a trace."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

RECORDED = 3
"""Timing level of parts that are not in `Timers.seconds` at Megatron's levels 0 to 2."""
_NOTHING: AbstractContextManager[None] = nullcontext()


class Timed(NamedTuple):
    """One run of a timed part; start and stop in seconds of `time.perf_counter`; about: an object whose text names the
    work."""

    name: str
    start: float
    stop: float
    about: object
    """An object whose text names the work, such as the action of a schedule."""


class Timers:
    """Seconds spent in each part of a step, by the part's name, summed until `take`; while `recorded` is a list, each
    run of a part of any level that begins and ends then is appended to it, too.

    Args:
        level: parts of a higher level are not summed in `seconds`.
        barrier: called before a part of level 1 is timed, if such parts are summed.
        idle: gives the seconds that this rank has waited for others so far. If given, the time of each part of any
            level without waiting is summed in `busy`, too.
    """

    def __init__(
        self,
        level: int = 0,
        barrier: Callable[[], None] | None = None,
        idle: Callable[[], float] | None = None,
    ) -> None:
        self.level, self.barrier, self.idle = level, barrier, idle
        self.seconds: dict[str, float] = {}
        self.busy: dict[str, float] = {}
        self.recorded: list[Timed] | None = None

    def __call__(self, name: str, level: int = 2, about: object = "") -> AbstractContextManager[object]:
        """Context that times the block as a run of the part `name`. level: the part's; about: an object whose text
        names the work."""
        if level > self.level and self.recorded is None and self.idle is None:
            return _NOTHING
        if self.barrier is not None and level == 1 <= self.level:
            self.barrier()
        return _Running(self, name, about, is_summed=level <= self.level)

    def take(self) -> dict[str, float]:
        """The summed seconds by part since the last call, and begin new sums."""
        taken, self.seconds = self.seconds, {}
        return taken

    def take_busy(self) -> dict[str, float]:
        """The summed seconds by part without waiting for others since the last call, and begin new sums."""
        taken, self.busy = self.busy, {}
        return taken


class _Running:
    def __init__(self, timers: Timers, name: str, about: object, is_summed: bool) -> None:
        self._timers, self._name, self._about, self._is_summed = timers, name, about, is_summed

    def __enter__(self) -> None:
        self._idle = self._timers.idle() if self._timers.idle is not None else 0.0
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        stop, timers = time.perf_counter(), self._timers
        if self._is_summed:
            timers.seconds[self._name] = timers.seconds.get(self._name, 0.0) + stop - self._start
        if timers.idle is not None:
            busy = stop - self._start - (timers.idle() - self._idle)
            timers.busy[self._name] = timers.busy.get(self._name, 0.0) + busy
        if timers.recorded is not None:
            timers.recorded.append(Timed(self._name, self._start, stop, self._about))
