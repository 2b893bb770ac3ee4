"""A trace's file as Perfetto takes it: the Trace Event Format, whose complete events nest within their thread."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Slices = dict[tuple[int, int], list[tuple[int, int]]]
FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "cat": str,
    "ph": str,
    "ts": int,
    "dur": int,
    "pid": int,
    "tid": int,
    "args": dict,
}
"""Key of a complete event -> its type; `ts` and `dur` are microseconds."""


def slices(path: Path) -> Slices:
    """(process, thread) -> [(start, stop)] of its slices in the file's order, microseconds. Asserts the format, as
    Perfetto leaves wrong slices out: all fields with their types, times from 0, slices of a thread nested or apart,
    names of process and thread."""
    whole = json.loads(path.read_text(), parse_constant=_no_number)
    assert whole["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[str, int, int]] = set()
    found: Slices = defaultdict(list)
    for event in whole["traceEvents"]:
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str), event
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ph"] == "X" and event.keys() == FIELDS.keys(), event
        assert all(type(event[name]) is kind for name, kind in FIELDS.items()), event
        assert event["ts"] >= 0 and event["dur"] >= 0 and event["name"] and event["cat"], event
        found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for (process, thread), own in found.items():
        assert {("process_name", process, thread), ("thread_name", process, thread)} <= named
        _nest(own)
    return dict(found)


def _no_number(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def _nest(own: list[tuple[int, int]]) -> None:
    """Assert that slices of a thread are nested or apart, and that each begins no earlier than the one written before
    it."""
    around: list[tuple[int, int]] = []
    before = 0
    for start, stop in own:
        assert start >= before, (start, before)
        before = start
        while around and around[-1][1] <= start:
            around.pop()
        assert not around or stop <= around[-1][1], (start, stop, around)
        around.append((start, stop))
