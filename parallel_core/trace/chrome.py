"""The Trace Event Format, which chrome://tracing and ui.perfetto.dev open: a process for each rank, a thread for each
lane, times in microseconds ("Trace Event Format", Chromium)."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from parallel_core.system.files import read_json
from parallel_core.trace.span import Kind, Span

LANES = ("rank", "messages under way")
_MICROSECONDS = 1e6


def chrome_json(spans: Iterable[Span], **about: Any) -> str:
    """The text of a file. about: further keys of the whole, which viewers leave alone."""
    listed = sorted(spans, key=lambda span: (span.rank, span.start, -span.seconds))
    origin = min((span.start for span in listed), default=0.0)
    events = [*_names(listed), *(_event(span, origin) for span in listed)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", **about}, separators=(",", ":"))


def _names(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    for rank, lane in sorted({(span.rank, span.lane) for span in spans}):
        thread = {"ph": "M", "pid": rank, "tid": LANES.index(lane)}
        yield {**thread, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {**thread, "name": "thread_name", "args": {"name": lane}}


def _event(span: Span, origin: float) -> dict[str, Any]:
    more = {"group": span.group} if span.group else {}
    return {
        "name": span.name,
        "cat": span.kind.value,
        "ph": "X",
        "ts": round((span.start - origin) * _MICROSECONDS, 3),
        "dur": round(span.seconds * _MICROSECONDS, 3),
        "pid": span.rank,
        "tid": LANES.index(span.lane),
        "args": {"step": span.step, **more},
    }


def read_chrome(path: Path) -> list[Span]:
    """The spans of a file that `chrome_json` wrote. Raises ValueError for another file, OSError if there is none."""
    try:
        return [_span(event) for event in read_json(path)["traceEvents"] if event["ph"] == "X"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no trace of this program ({error})") from error


def _span(event: dict[str, Any]) -> Span:
    start, seconds, more = event["ts"] / _MICROSECONDS, event["dur"] / _MICROSECONDS, event["args"]
    return Span(event["pid"], Kind(event["cat"]), event["name"], start, seconds, more["step"], more.get("group", ""))
