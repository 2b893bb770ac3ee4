"""The sections of a page with each run's main figures, and with its events."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parallel_core.report.figures import NUMBERS
from parallel_core.report.parts import ABSENT, Section, Table, figure
from parallel_core.report.run import Run

MOST = 200
"""The most warnings in their table, and starts, ends and errors of one run in theirs; the last ones are shown."""
PARTS = ("weights", "gradients", "optimizer", "activations", "total")


def overview(runs: Sequence[Run]) -> Section:
    """The section with a table of all runs' main figures, a table of memory as predicted and measured for the runs that
    have a prediction (if any has), and for each run that compared steps with a plan tables of its last comparison: time
    by part and memory by part, each if it was compared."""
    columns = [
        "run",
        "steps",
        "loss",
        "validation loss",
        "skipped",
        "not finite",
        "tokens/s",
        "MFU",
        "ms a step",
        "hours",
    ]
    tables = [Table("Runs", columns, [_row(run) for run in runs])]
    memory = [[run.name, *_memory(run)] for run in runs if run.predicted]
    if memory:
        names = [f"{part.replace('_', ' ')}, predicted" for part in PARTS]
        tables.append(Table("Memory of rank 0", ["run", *names, "most held, measured"], memory))
    tables += [table for run in runs for table in _beside(run)]
    note = "Speeds are medians. On a CPU what is measured is resident memory, the program's own among it."
    return Section("overview", "Overview", note, tables=tables)


def _row(run: Run) -> list[str]:
    figures, steps = run.figures, run.figures.of("step")
    of = f" of {limit}" if (limit := _train_iters(run)) else ""
    losses = figures.of("loss")
    return [
        run.name,
        f"{figure(_last(steps))}{of}",
        figure(_last(losses)),
        figure(_last(figures.of("validation_loss"))),
        figure(float(np.nansum(figures.of("skipped")))),
        figure(float((~np.isfinite(losses)).sum())),
        figure(_median(figures.of("tokens_per_second"))),
        figure(100 * _median(figures.of("mfu")), " %"),
        figure(_median(figures.of("milliseconds"))),
        figure(float(np.nansum(figures.of("milliseconds"))) / 3.6e6),
    ]


def _train_iters(run: Run) -> Any:
    config = run.start.get("config")
    training = config.get("training_config") if isinstance(config, dict) else None
    return training.get("training_iters") if isinstance(training, dict) else None


def _last(values: Any) -> float:
    there = values[~np.isnan(values)]
    return float(there[-1]) if len(there) else float("nan")


def _median(values: Any) -> float:
    there = values[np.isfinite(values)]
    return float(np.median(there)) if len(there) else float("nan")


def _memory(run: Run) -> Iterator[str]:
    for part in PARTS:
        yield figure(run.predicted.get(part), " MiB")
    yield figure(_last(run.figures.of("memory_mb")), " MiB")


UNITS = {"seconds": ("ms", 1e-3), "memory": ("MiB", 2.0**20)}


def _beside(run: Run) -> Iterator[Table]:
    """Tables of planned and measured figures of a step of rank 0: time in ms, then memory in MiB."""
    event = (run.events.get("comparison") or [{}])[-1]
    for name, (unit, size) in UNITS.items():
        quantity = event.get(name)
        parts = quantity.get("parts") if isinstance(quantity, dict) else None
        rows = list(_compared(parts, unit, size)) if isinstance(parts, dict) else []
        if rows:
            caption = f"{run.name}: {name} of step {event.get('step')} beside the plan on {event.get('device')}"
            yield Table(caption, ["part", "planned", "measured", "measured over planned"], rows)


def _compared(parts: dict[str, Any], unit: str, size: float) -> Iterator[list[str]]:
    pairs = {name: pair for name, pair in parts.items() if isinstance(pair, list) and len(pair) == 2}
    numbers = {name: [value if type(value) in NUMBERS else None for value in pair] for name, pair in pairs.items()}
    for name, (planned, measured) in [*numbers.items(), ("total", _sums(list(numbers.values())))]:
        cells = [None if value is None else value / size for value in (planned, measured)]
        share = measured / planned if measured is not None and planned else None
        yield [name, *(figure(cell, f" {unit}") for cell in cells), figure(share)]


def _sums(pairs: Sequence[Sequence[float | None]]) -> list[float | None]:
    """[planned, measured]: the sum of each; None where a part of it is missing."""
    return [None if None in column else sum(filter(None, column)) for column in zip(*pairs, strict=True)] or [None] * 2


def happened(runs: Sequence[Run]) -> Section:
    """The section of events: a table of starts, ends and errors of runs (of each run the last 200), and one of
    warnings, run after run (the last 200 of all), among them lines and traces that cannot be read and, of a run that
    has losses, steps without a finite one; each table only if it has rows."""
    starts = [row for run in runs for row in _starts(run)]
    warnings = [row for run in runs for row in _warnings(run)]
    tables = [Table("Starts and ends", ["run", "time (UTC)", "step", "what", "from"], starts)] if starts else []
    if warnings:
        tables.append(Table("Warnings", ["run", "time (UTC)", "step", "warning"], warnings[-MOST:]))
    note = "" if warnings else "No warnings."
    if len(warnings) > MOST:
        note = f"The last {MOST} of {len(warnings)} warnings; all are in events.jsonl."
    return Section("events", "Starts, warnings, errors", note, tables=tables)


def _starts(run: Run) -> Iterator[list[str]]:
    listed = [(kind, event) for kind in ("start", "end", "error") for event in run.events.get(kind, ())]
    for kind, event in sorted(listed, key=lambda pair: pair[1]["place"])[-MOST:]:
        origin = event.get("resumed_from") or ("the beginning" if kind == "start" else event.get("message", ""))
        yield [run.name, *_when(event), kind, str(origin)]


def _warnings(run: Run) -> Iterator[list[str]]:
    for event in run.events.get("warning", ()):
        yield [run.name, *_when(event), str(event.get("message"))]
    for name, count in (("metrics.jsonl", run.figures.unreadable), ("events.jsonl", run.unreadable_events)):
        if count:
            yield [run.name, ABSENT, ABSENT, f"{name}: {count} lines cannot be read and are left out"]
    if run.problem_of_trace:
        yield [run.name, ABSENT, ABSENT, run.problem_of_trace]
    losses, steps = run.figures.of("loss"), run.figures.of("step")
    wrong = steps[~np.isfinite(losses)] if len(losses) else steps[:0]
    if len(wrong):
        first = ", ".join(figure(step) for step in wrong[:10].tolist())
        yield [run.name, ABSENT, figure(wrong[0]), f"the loss of {len(wrong)} steps is no number: {first}"]


def _when(event: dict[str, Any]) -> tuple[str, str]:
    return str(event.get("time", ABSENT)).removesuffix("+00:00").replace("T", " "), str(event.get("step", ABSENT))
