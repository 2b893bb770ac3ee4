"""How a rank spends a step: computing, messages that nothing hides, the pipeline's bubble, data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallel_core.trace.span import COMPUTING, Kind, Span

PIPELINE = "pp"
"""The group in which a wait for another stage is a bubble."""


@dataclass(frozen=True)
class StepSummary:
    """Seconds of one step on one rank; they add up to `total` but for `unknown`."""

    rank: int
    step: int
    total: float
    computing: float
    messages: float
    """In collectives and transfers, waiting and moving, while nothing else is done."""
    bubble: float
    """Waiting for the tensors of another stage."""
    data: float

    @property
    def unknown(self) -> float:
        """Inside the step, but in no span."""
        return self.total - self.computing - self.messages - self.bubble - self.data

    @property
    def bubble_share(self) -> float:
        """The bubble as a part of the step."""
        return self.bubble / self.total if self.total else 0.0


def summary(spans: Sequence[Span]) -> list[StepSummary]:
    """One for every step of every rank, in order of rank and step. A wait inside a computation is no computing."""
    found: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        found.setdefault((span.rank, span.step), []).append(span)
    return [_of(rank, step, own) for (rank, step), own in sorted(found.items()) if _has_step(own)]


def _has_step(spans: Iterable[Span]) -> bool:
    return any(span.kind is Kind.STEP for span in spans)


def _of(rank: int, step: int, spans: Sequence[Span]) -> StepSummary:
    whole = next(span for span in spans if span.kind is Kind.STEP)
    inside = [span for span in spans if whole.start <= span.start and span.stop <= whole.stop + 1e-6]
    bubble = [span for span in inside if span.kind is Kind.WAITING and span.group == PIPELINE]
    messages = [span for span in inside if span.kind in (Kind.WAITING, Kind.MOVING) and span.group != PIPELINE]
    messages += [span for span in inside if span.kind is Kind.MOVING and span.group == PIPELINE]
    data = [span for span in inside if span.kind is Kind.DATA]
    computing = [span for span in inside if span.kind in COMPUTING]
    lost, idle = _length(messages), _length([*messages, *bubble])
    loaded = _length([*messages, *bubble, *data]) - idle
    busy = _length([*messages, *bubble, *data, *computing]) - idle - loaded
    return StepSummary(rank, step, whole.seconds, busy, lost, idle - lost, loaded)


def _length(spans: Iterable[Span]) -> float:
    """Of the union of the spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted((span.start, span.stop) for span in spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
