"""The section of a page with a recorded step of each run that has any, beside a step as planned."""

from collections.abc import Iterator, Sequence
from typing import Any

from parallel_core.report.parts import ABSENT, Bars, Section, Table, figure
from parallel_core.report.run import Run
from parallel_core.trace import Kind, Span, summary

MOST_RANKS, MOST_SPANS = 32, 3000
NOTE = (
    "Spans of --trace. A planned stage has the mean times of its measured actions and waits for its inputs alone; the "
    "difference to the ranks above it is messages, waiting and uneven micro-batches."
)
_ORDER = sorted(Kind, key=lambda kind: kind is not Kind.OTHER)
"""Kinds of work in the order of drawing: OTHER, whose spans lie around others, comes first."""


def section(runs: Sequence[Run]) -> Section | None:
    """A section with, for each run that has recorded spans, a chart and a table of the middle one of its recorded
    steps; None if no run has any."""
    plots = [_chart(number, run) for number, run in enumerate(runs) if run.measured]
    return Section("timeline", "A step's timeline", NOTE, list(plots)) if plots else None


def _chart(number: int, run: Run) -> Bars:
    """The chart of the middle one of a run's recorded steps, ranks first, then the planned stages; number: the run's
    index."""
    steps = sorted({span.step for span in run.measured})
    step = steps[len(steps) // 2]
    ranks = sorted({span.rank for span in run.measured})
    shown = [s for s in run.measured if s.step == step and s.rank in ranks[:MOST_RANKS] and s.kind is not Kind.STEP]
    shown = [span for span in shown if span.kind is not Kind.COLLECTIVE]
    longest = sorted(shown, key=lambda span: -span.seconds)[:MOST_SPANS]
    begin = min((span.start for span in shown), default=0.0)
    actions = [s.start for s in shown if s.kind is Kind.FORWARD]
    first = min(actions, default=begin)
    planned = [span._replace(start=span.start + first) for span in run.planned if span.rank < MOST_RANKS]
    rows = [*(f"rank {rank}" for rank in ranks[:MOST_RANKS])]
    rows += [f"planned stage {stage}" for stage in sorted({span.rank for span in planned})]
    kinds = dict(_kinds([*_named(longest, "rank"), *_named(planned, "planned stage")], begin))
    title = f"{run.name}: step {step}"
    left = [f"{len(ranks) - MOST_RANKS} more ranks" * (len(ranks) > MOST_RANKS)]
    left += [f"{len(shown) - len(longest)} short spans" * (len(shown) > len(longest))]
    out = f" Not drawn: {', '.join(filter(None, left))}." if any(left) else ""
    text = (
        f"{title}, measured on {len(ranks)} ranks, planned for {len(rows) - min(len(ranks), MOST_RANKS)} stages.{out}"
    )
    return Bars(f"step-{number}", title, text, rows, kinds, _table(title, run, step))


def _named(spans: Sequence[Span], word: str) -> list[tuple[str, Span]]:
    return [(f"{word} {span.rank}", span) for span in spans]


def _kinds(named: Sequence[tuple[str, Span]], begin: float) -> Iterator[tuple[str, list[list[Any]]]]:
    """(kind of work, [row, start, duration, name] of each of its bars) from rows and spans; ms from `begin` on. Longer
    spans come first, so that shorter ones inside them are drawn upon them."""
    for kind in sorted({span.kind for _, span in named}, key=_ORDER.index):
        own = sorted((pair for pair in named if pair[1].kind is kind), key=lambda pair: -pair[1].seconds)
        yield (
            kind.value,
            [[row, round((s.start - begin) * 1e3, 4), round(s.seconds * 1e3, 4), s.name] for row, s in own],
        )


def _table(title: str, run: Run, step: int) -> Table:
    """A row for each rank with the parts of the step in ms and its bubble, and a row with the bubble of the plan."""
    found = [one for one in summary(run.measured) if one.step == step]
    columns = ["rank", "step", "computing", "messages", "bubble", "data", "not recorded", "bubble of the pipeline"]
    rows = [
        [
            str(one.rank),
            *(figure(1e3 * part, " ms") for part in (one.total, one.computing, one.messages, one.bubble, one.data)),
            figure(1e3 * one.unknown, " ms"),
            f"{one.bubble_share:.1%}",
        ]
        for one in found
    ]
    if run.planned:
        rows.append(["planned, mean of the stages", *[ABSENT] * 6, f"{_bubble(run.planned):.1%}"])
    return Table(f"{title}: figures", columns, rows)


def _bubble(planned: Sequence[Span]) -> float:
    stages, length = len({span.rank for span in planned}), max(span.stop for span in planned)
    return 1.0 - sum(span.seconds for span in planned) / (stages * length) if length else 0.0
