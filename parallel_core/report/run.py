"""A run as the files in its folder describe it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.commit import EVENTS, METRICS
from parallel_core.report.figures import Figures
from parallel_core.report.lines import LinesReader
from parallel_core.trace import Span, read_chrome, read_planned

TRACE = "trace.json"
MOST_EVENTS = 10_000
"""The most events of a kind that are kept, the latest ones."""


class Run:
    """A run's folder (figures, events, trace) as `refresh` read it last; empty before the first call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        self.figures = Figures(folder / METRICS)
        self.events: dict[str, list[dict[str, Any]]] = {}
        """Kind ("start", "warning", "experts", "comparison", "end", "error") -> events of the last run in the folder,
        oldest first."""
        self.measured: list[Span] = []
        self.planned: list[Span] = []
        self.problem_of_trace = ""
        self._lines = LinesReader(folder / EVENTS)
        self._trace_of: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Read what the run has written since the last call, and return whether figures, events or the trace may
        have changed. A missing file is empty. Raises OSError for a file that cannot be read."""
        return any([self.figures.refresh(), self._read_events(), self._read_trace()])

    @property
    def is_empty(self) -> bool:
        """Whether the folder, as read last, has neither figures nor events nor a trace with measured spans."""
        return not (self.figures.names() or self.events or self.measured)

    @property
    def start(self) -> dict[str, Any]:
        """The event of the run's last start; empty if there is none."""
        return (self.events.get("start") or [{}])[-1]

    @property
    def predicted(self) -> dict[str, float]:
        """Part of rank 0's memory, or "total" -> its planned size in MiB, from the last start; empty if nothing was
        predicted."""
        parts = self.start.get("memory_predicted")
        found = parts.items() if isinstance(parts, dict) else ()
        return {name: size / 2.0**20 for name, size in found if isinstance(size, int | float)}

    @property
    def unreadable_events(self) -> int:
        """The number of whole lines of `events.jsonl`, as read last, without empty ones, that are no JSON object."""
        return self._lines.unreadable

    def _read_events(self) -> bool:
        begins_anew, lines = self._lines.new()
        if begins_anew:
            self.events = {}
        is_new = begins_anew
        for line in lines:
            is_new |= self._take(line)
        return is_new

    def _take(self, line: dict[str, Any]) -> bool:
        """Keep a line if it is an event, and tell whether it is. A start of another run (`run_id`) drops the events
        before it."""
        kind = line.get("event")
        if not isinstance(kind, str):
            return False
        if kind == "start" and self.start.get("run_id") != line.get("run_id"):
            self.events = {}
        kept = self.events.setdefault(kind, [])
        kept.append({**line, "place": self._lines.read})
        del kept[:-MOST_EVENTS]
        return True

    def _read_trace(self) -> bool:
        path = self.folder / TRACE
        try:
            status = path.stat()
            of = status.st_mtime_ns, status.st_size
        except FileNotFoundError:
            of = None
        if of == self._trace_of:
            return False
        self._trace_of, self.measured, self.planned, self.problem_of_trace = of, [], [], ""
        if of is not None:
            try:
                self.measured, self.planned = read_chrome(path), read_planned(path)
            except ValueError as error:
                self.problem_of_trace = str(error)
        return True


def name_apart(runs: Iterable[Run]) -> None:
    """Set each run's name to the last parts of its folder's absolute path: of all runs the same number, the smallest
    that tells them apart; if two have the same path, each name is the whole path."""
    listed = list(runs)
    for parts in range(1, 1 + max((len(run.folder.absolute().parts) for run in listed), default=0)):
        names = [str(Path(*run.folder.absolute().parts[-parts:])) for run in listed]
        if len(set(names)) == len(names):
            break
    for run, name in zip(listed, names if listed else [], strict=True):
        run.name = name
