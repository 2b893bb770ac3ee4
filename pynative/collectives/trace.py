"""Counts of collectives, their bytes and seconds by group and operation, cheap enough to be always on."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.messages import BYTES_SENT as TRAFFIC

__all__ = ["TRAFFIC", "Count", "Interval", "Trace"]


class Interval(NamedTuple):
    """The time from the issue of an operation to its end on this rank, in seconds of `time.perf_counter`."""

    start: float
    stop: float


class Inside(NamedTuple):
    """One stay of this rank inside an operation, in seconds of `time.perf_counter`."""

    start: float
    stop: float
    idle: float
    """The part of these seconds in which nothing could move, because this rank waited for other ranks."""


@dataclass
class Count:
    """Calls of one operation, the bytes that this rank sent in them (by the formulas in `TRAFFIC`), and the seconds
    that it spent inside of them, waiting included."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    intervals: list[Interval] | None = None
    """Start and end of each call; None unless the trace keeps intervals."""
    stays: list[Inside] | None = None
    """Each stay of this rank inside the operation; None unless the trace keeps intervals."""

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
        """Whether counts keep when each call was issued and ended (`intervals`), and when this rank was inside of it
        (`stays`). Setting this forgets those kept so far."""
        return self._keeps

    @keeps_intervals.setter
    def keeps_intervals(self, keeps: bool) -> None:
        self._keeps = keeps
        for count in self.counts.values():
            count.intervals, count.stays = ([], []) if keeps else (None, None)

    def of(self, group: str, operation: str) -> Count:
        """The count of one operation of one group (by its name), made when first asked for."""
        key = (group, operation)
        if key not in self.counts:
            self.counts[key] = Count(intervals=[] if self._keeps else None, stays=[] if self._keeps else None)
        return self.counts[key]

    def total(self) -> Count:
        """A count summed over all groups and operations, without intervals and stays."""
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
