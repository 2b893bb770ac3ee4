"""Counts of collectives and messages, their bytes and seconds, by group and operation."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.messages import BYTES_SENT as TRAFFIC

__all__ = ["TRAFFIC", "Count", "Interval", "Trace"]


class Interval(NamedTuple):
    """The issue of an operation and its end on this rank, in seconds of `time.perf_counter`."""

    start: float
    stop: float


class Inside(NamedTuple):
    """One stretch of this rank's time that is counted for an operation, in seconds of `time.perf_counter`. idle: the
    seconds of it in which nothing could move, because this rank waited for other ranks."""

    start: float
    stop: float
    idle: float
    """The seconds of this stretch in which nothing could move, because this rank waited for other ranks."""


@dataclass
class Count:
    """Calls of an operation by this rank in groups of several, the bytes that it sends in them by the formulas in
    `TRAFFIC`, and the seconds of its time that are counted for them: on CPUs of issue, `wait` (waiting included) and
    `Backend.progress`; with HCCL of the launch, for messages of `batch_send_recv` next to none, since they are launched
    before. intervals: issue and end of calls, on CPUs alone; stays: the stretches of time counted; both since the trace
    keeps intervals, None if it keeps none."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    intervals: list[Interval] | None = None
    """On CPUs issue and end of each call that was completed since the trace keeps intervals; None if it keeps none."""
    stays: list[Inside] | None = None
    """The stretches of time counted since the trace keeps intervals; None if it keeps none."""

    def add_inside(self, start: float, idle: float = 0.0) -> None:
        """Count the time from `start` (`time.perf_counter`) until now, of which `idle` seconds were waited for other
        ranks."""
        stop = time.perf_counter()
        self.seconds += stop - start
        if self.stays is not None:
            self.stays.append(Inside(start, stop, idle))

    def add_interval(self, start: float) -> None:
        """Record that an operation issued at `start` ends now, if intervals are kept."""
        if self.intervals is not None:
            self.intervals.append(Interval(start, time.perf_counter()))


class Trace:
    """Counts of one rank by (group name, operation)."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Count] = {}
        self._keeps = False

    @property
    def keeps_intervals(self) -> bool:
        """Whether counts keep `intervals` and `stays`. Setting this, to either value, forgets those kept so far."""
        return self._keeps

    @keeps_intervals.setter
    def keeps_intervals(self, keeps: bool) -> None:
        self._keeps = keeps
        for count in self.counts.values():
            count.intervals, count.stays = ([], []) if keeps else (None, None)

    def of(self, group: str, operation: str) -> Count:
        """The count of one operation of the groups of this name, made if there is none yet."""
        key = (group, operation)
        if key not in self.counts:
            self.counts[key] = Count(intervals=[] if self._keeps else None, stays=[] if self._keeps else None)
        return self.counts[key]

    def total(self) -> Count:
        """A new count, the sum over all groups and operations, without intervals and stays."""
        counts = self.counts.values()
        return Count(sum(c.calls for c in counts), sum(c.bytes for c in counts), sum(c.seconds for c in counts))

    def reset(self) -> None:
        """Forget all counts."""
        self.counts.clear()

    def __str__(self) -> str:
        rows = [f"{'group':24} {'operation':16} {'calls':>8} {'MB sent':>10} {'ms':>10}"]
        for (group, operation), c in sorted(self.counts.items()):
            rows.append(f"{group:24} {operation:16} {c.calls:8} {c.bytes / 1e6:10.2f} {c.seconds * 1e3:10.2f}")
        return "\n".join(rows)
