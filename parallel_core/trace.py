"""A recorded or predicted step as a value: spans of ranks on one clock, their file for Chrome and Perfetto, and how a
rank spends a step.

The file has the Trace Event Format, which chrome://tracing and ui.perfetto.dev open: a process for each rank; in it a
thread for the rank's own work, and one for each of the collectives under way at once; times of events in microseconds
("Trace Event Format", Chromium).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.config import AllConfig
from parallel_core.schedules import order
from parallel_core.schedules.actions import Backward, Compute, Forward, Pair, WeightGrad
from parallel_core.schedules.simulate import Durations, Time, Timeline, simulate
from parallel_core.system.files import read_json


class Kind(str, Enum):
    """Kind of work in a span; the value stands for it in a trace file."""

    STEP = "step"
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT_GRADIENTS = "weight gradients"
    PAIR = "forward and backward"
    """A forward and a backward side by side: while the messages of one travel, the other computes."""
    OPTIMIZER = "optimizer"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    WAITING = "waiting"
    """Waiting for other ranks in a collective or a receive."""
    MOVING = "moving"
    """Moving data in a collective or a transfer: copying or adding."""
    COLLECTIVE = "collective"
    """A collective from its issue to its end, whatever the rank does meanwhile."""
    OTHER = "other"


_ACTIONS = (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENTS, Kind.PAIR)
COMPUTING = frozenset({*_ACTIONS, Kind.OPTIMIZER, Kind.OTHER})


class Span(NamedTuple):
    """A piece of one rank's work in a `step` (from 1; 0: not said), from `start` on for `seconds`; group: of a message,
    the ranks' group by name. Spans of a rank may lie inside one another; COLLECTIVE ones may also overlap in part."""

    rank: int
    kind: Kind
    name: str
    start: float
    """Seconds on a clock, which in a trace is the same for all ranks."""
    seconds: float
    step: int = 0
    """The iteration in which the span lies, from 1; 0: not said."""
    group: str = ""
    """For a message: the name of the ranks' group, such as `tp`, `pp`; else empty."""

    @property
    def stop(self) -> float:
        """The end, in seconds on the clock of `start`."""
        return self.start + self.seconds


_MICROSECONDS = 1e6


def chrome_json(spans: Iterable[Span], **about: Any) -> str:
    """The text of a trace file with these spans; the times of its events are counted from the start of the
    earliest one. about: further top-level keys and their values."""
    listed = sorted(spans, key=lambda span: (span.rank, span.start, -span.seconds))
    origin = min((span.start for span in listed), default=0.0)
    rows = list(_rows(listed))
    names = _names({(span.rank, row) for span, row in zip(listed, rows, strict=True)})
    events = [*names, *(_event(span, row, origin) for span, row in zip(listed, rows, strict=True))]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", **about}, separators=(",", ":"))


def _rows(spans: Iterable[Span]) -> Iterator[int]:
    """The row of each span in its rank's process: 0 for the rank's own work, from 1 on for collectives, in as many rows
    as are under way at once. Perfetto drops a span that lies partly in another of its row."""
    ends: defaultdict[int, list[float]] = defaultdict(list)
    for span in spans:
        if span.kind is not Kind.COLLECTIVE:
            yield 0
            continue
        busy = ends[span.rank]
        row = next((row for row, end in enumerate(busy) if end <= span.start), len(busy))
        busy[row : row + 1] = [span.stop]
        yield 1 + row


def _names(rows: Iterable[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for rank, row in sorted(rows):
        thread = {"ph": "M", "pid": rank, "tid": row}
        yield {**thread, "name": "process_name", "args": {"name": f"rank {rank}"}}
        title = f"messages under way {row}" if row else "rank"
        yield {**thread, "name": "thread_name", "args": {"name": title}}


def _event(span: Span, row: int, origin: float) -> dict[str, Any]:
    """The event of a span. Start and end are rounded to whole microseconds, not the length: otherwise spans would reach
    beyond those around them."""
    start, stop = (round((time - origin) * _MICROSECONDS) for time in (span.start, span.stop))
    return {
        "name": span.name,
        "cat": span.kind.value,
        "ph": "X",
        "ts": start,
        "dur": stop - start,
        "pid": span.rank,
        "tid": row,
        "args": {"step": span.step, **({"group": span.group} if span.group else {})},
    }


def planned_json(spans: Iterable[Span]) -> list[list[Any]]:
    """The planned spans as [rank, kind, name, start, seconds], for the list "spans" under "planned" in a
    trace file."""
    return [[span.rank, span.kind.value, span.name, span.start, span.seconds] for span in spans]


_NO_TRACE = (AttributeError, KeyError, TypeError, ValueError, OverflowError)
"""Errors of reading spans from JSON of another form."""


def read_planned(path: Path) -> list[Span]:
    """The planned spans of a trace file; empty if its JSON object, a trace or not, has none under "planned". Raises
    ValueError for a file that is no JSON object or whose planned spans cannot be read as such, OSError for one that
    cannot be read."""
    content = read_json(path)
    try:
        rows = content.get("planned", {}).get("spans", [])
        return [
            _placed(int(rank), Kind(kind), str(name), float(at), float(took)) for rank, kind, name, at, took in rows
        ]
    except _NO_TRACE as error:
        raise ValueError(f"{path}: is no trace of this program ({error})") from error


def read_chrome(path: Path) -> list[Span]:
    """The spans in the events of a file that `chrome_json` wrote, as it wrote them: seconds from the start of the
    earliest one, starts and ends rounded to microseconds. Raises ValueError for a file that is no JSON, has no
    "traceEvents", or has a span that lacks a part, is of no `Kind` or has times that are no finite numbers; OSError
    for one that cannot be read."""
    content = read_json(path)
    try:
        return [_span(event) for event in content["traceEvents"] if event["ph"] == "X"]
    except _NO_TRACE as error:
        raise ValueError(f"{path}: is no trace of this program ({error})") from error


def _span(event: dict[str, Any]) -> Span:
    start, seconds, more = event["ts"] / _MICROSECONDS, event["dur"] / _MICROSECONDS, event["args"]
    return _placed(event["pid"], Kind(event["cat"]), event["name"], start, seconds, more["step"], more.get("group", ""))


def _placed(rank: int, kind: Kind, name: str, start: float, seconds: float, step: int = 0, group: str = "") -> Span:
    if not (isfinite(start) and isfinite(seconds)):
        raise ValueError(f"{name} begins at {start} and takes {seconds}")
    return Span(rank, kind, name, start, seconds, step, group)


PIPELINE = "pp"
"""Name of the pipeline-parallel group: waiting in a message of this group is the bubble."""
LOSS = "loss-reduce"
"""Name of the span around the first message behind the last backward, in which a stage that has finished early
waits."""
GRADIENTS = "all-grads-sync"
"""Name of the span in which gradients are summed over replicas, and checked."""


@dataclass(frozen=True)
class StepSummary:
    """Seconds of one step on one rank by kind of work: computing, messages, bubble and data add up to `total` but for
    `unknown`; pipeline: from the first computation of the schedule on any rank to the end of the last."""

    rank: int
    step: int
    total: float
    computing: float
    messages: float
    """Time in which the rank moves data in collectives and transfers or waits in them, without `bubble`."""
    bubble: float
    """Waiting for other stages: for their tensors and, if the rank waited for any, after its last pass until the last
    passes of all ranks are over."""
    data: float
    pipeline: float
    """Time from the start of the first forward, backward or computation of weight gradients of any rank to the end of
    the last."""

    @property
    def unknown(self) -> float:
        """Seconds of the step that are in none of computing, messages, bubble and data."""
        return self.total - self.computing - self.messages - self.bubble - self.data

    @property
    def bubble_share(self) -> float:
        """`bubble`, the seconds for which this rank waits for other stages, divided by `pipeline`; 0 if that is 0."""
        return self.bubble / self.pipeline if self.pipeline else 0.0


def summary(spans: Sequence[Span]) -> list[StepSummary]:
    """A summary for each span of kind STEP, in order of rank and step. A wait inside a computation is not counted as
    computing."""
    found: dict[tuple[int, int], list[Span]] = {}
    actions: dict[int, tuple[float, float]] = {}
    for span in spans:
        found.setdefault((span.rank, span.step), []).append(span)
        if span.kind in _ACTIONS:
            first, last = actions.get(span.step, (span.start, span.stop))
            actions[span.step] = min(first, span.start), max(last, span.stop)
    return [
        _of(rank, step, whole, own, actions.get(step, (0.0, 0.0)))
        for (rank, step), own in sorted(found.items())
        for whole in own
        if whole.kind is Kind.STEP
    ]


def _of(rank: int, step: int, whole: Span, spans: Sequence[Span], actions: tuple[float, float]) -> StepSummary:
    inside = [span for span in spans if whole.start <= span.start and span.stop <= whole.stop + 1e-6]
    moving = [span for span in inside if span.kind is Kind.MOVING]
    waiting = [span for span in inside if span.kind is Kind.WAITING and span.group != PIPELINE]
    bubble = [span for span in inside if span.kind is Kind.WAITING and span.group == PIPELINE]
    if bubble:
        bubble += [_until(actions[1], span) for span in inside if span.name == LOSS]
    parts = (
        moving,
        bubble,
        waiting,
        [s for s in inside if s.kind is Kind.DATA],
        [s for s in inside if s.kind in COMPUTING],
    )
    moved, idle, waited, loaded, computed = each_without_the_ones_before(parts)
    return StepSummary(rank, step, whole.seconds, computed, moved + waited, idle, loaded, actions[1] - actions[0])


def _until(end: float, span: Span) -> Span:
    return span._replace(seconds=max(0.0, min(span.stop, end) - span.start))


def each_without_the_ones_before(parts: Iterable[Sequence[Span]]) -> list[float]:
    """For each of `parts`, which are lists of spans: the seconds that its spans cover and no span of an earlier one."""
    covered: list[Span] = []
    lengths = [0.0]
    for part in parts:
        covered += part
        lengths.append(_length(covered))
    return [longer - shorter for shorter, longer in pairwise(lengths)]


def _length(spans: Iterable[Span]) -> float:
    """Seconds of the union of the spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted((span.start, span.stop) for span in spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


_UNIT = 1e-6


def planned_timeline(
    config: AllConfig,
    stage_of: Callable[[int], int],
    spans: Sequence[Span],
    micro_batches: int,
    times: Durations | None = None,
) -> Timeline:
    """The timeline of the run's schedule for a step of `micro_batches`, in microseconds, simulated with the mean times
    of the computations in `spans`; transfers take none. stage_of: a function from a rank to its stage. times: the times
    by which the run has ordered its computations, if any."""
    parallel = config.parallel_config
    group_size = parallel.microbatch_group_size_per_virtual_pipeline_stage
    computes = order(parallel.schedule_name, parallel.placement, micro_batches, group_size, times)
    return simulate(computes, MeasuredTimes.of_spans(spans, stage_of), parallel.placement)


@dataclass(frozen=True)
class MeasuredTimes:
    """`schedules.simulate.Durations` of a recorded run, in whole microseconds: mean times of computations, at least 1
    each, and 0 for a kind that no stage recorded. means: (kind, stage, chunk), or (kind,) for all -> mean."""

    means: Mapping[tuple[Any, ...], int]
    """(kind, stage, chunk) -> mean time; (kind,) -> mean of all, for a stage that did not record."""
    transfer: Time = 0

    @classmethod
    def of_spans(cls, spans: Iterable[Span], stage_of: Callable[[int], int]) -> "MeasuredTimes":
        """The mean times over all recorded steps and all ranks of a stage, of computations outside of pairs, whose
        names end in the chunk's number. stage_of: a function from a rank to its stage."""
        stage = cache(stage_of)
        seconds: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
        for span in spans:
            if span.kind in _KINDS.values():
                chunk = int(span.name.rpartition(".")[2])
                for key in ((span.kind, stage(span.rank), chunk), (span.kind,)):
                    seconds[key].append(span.seconds)
        return cls({key: max(1, round(sum(own) / len(own) / _UNIT)) for key, own in seconds.items()})

    def of(self, action: Compute, stage: int, chunks: int, split: bool) -> Time:
        """The mean time of computations of this kind and chunk on the stage, in microseconds; where the stage recorded
        none of these, the mean of the kind over all that were recorded, or 0. chunks, split: not read."""
        kind = _KINDS[type(action)]
        return self.means.get((kind, stage, action.chunk), self.means.get((kind,), 0))

    def saved(self, pair: Pair, stage: int, chunks: int) -> Time:
        """The time by which a pair is shorter than its two computations together: always 0 here."""
        return 0


def planned_bubble_share(timeline: Timeline) -> float:
    """The mean over the stages of the part of the timeline's length in which they do not compute; 0 if it is empty."""
    whole = len(timeline.spans) * float(timeline.length)
    return 1.0 - float(sum(timeline.work)) / whole if whole else 0.0


_KINDS: dict[type, Kind] = {
    Forward: Kind.FORWARD,
    Backward: Kind.BACKWARD,
    WeightGrad: Kind.WEIGHT_GRADIENTS,
}


def planned_spans(timeline: Timeline) -> list[Span]:
    """The computations of a timeline in microseconds as spans of a trace, in seconds; stage i is shown as rank i."""
    return [
        Span(stage, kind, f"{kind.value} {action.micro_batch}.{action.chunk}", *_seconds(start, stop))
        for stage, spans in enumerate(timeline.spans)
        for action, start, stop in spans
        for kind in (_KINDS[type(action)],)
    ]


def _seconds(start: Time, stop: Time) -> tuple[float, float]:
    """(start, length) of a span in seconds, from microseconds."""
    return float(start) * _UNIT, float(stop - start) * _UNIT
