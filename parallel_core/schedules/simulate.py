"""The time of a schedule: its timeline, its bubble, the activations that it keeps; exact, without a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Protocol

from parallel_core.schedules.actions import (
    Backward,
    Compute,
    Forward,
    Ordered,
    Placement,
    WeightGrad,
    computes_of,
    producer,
)
from parallel_core.schedules.check import kept

Time = int | Fraction | float
"""A time in any unit; sums and comparisons are exact, but of floats."""


class Durations(Protocol):
    """The times of computations, and of messages between stages."""

    @property
    def transfer(self) -> Time:
        """The time from the end of a computation to the earliest start of what needs its result on another stage."""

    def of(self, action: Compute, stage: int, chunks: int, split: bool) -> Time:
        """The time of `action`; `split` if weight gradients are actions of their own."""


@dataclass(frozen=True)
class Times:
    """The times of one micro-batch on one stage, all its chunks together."""

    forward: Time = 1
    backward: Time = 2
    """Gradients of input and weights together."""
    weight: Time = 1
    """The part of `backward` that makes the gradients of the weights; a time of its own where a schedule splits it."""
    transfer: Time = 0
    """The time from the end of a computation to the earliest start of what needs its result on another stage."""
    shares: Sequence[Sequence[Time]] | None = None
    """The part of these times that each chunk of each stage takes, [chunk][stage]; an even one if not given."""

    def of(self, action: Compute, stage: int, chunks: int, split: bool) -> Time:
        """The time of `action`; `split` if weight gradients are actions of their own."""
        match action:
            case Forward():
                whole = self.forward
            case Backward():
                whole = self.backward - self.weight if split else self.backward
            case WeightGrad():
                whole = self.weight
        if self.shares is not None:
            return whole * self.shares[action.chunk][stage]
        return whole if chunks == 1 else Fraction(whole) / chunks


class TimedAction(NamedTuple):
    """One computation on the time axis."""

    action: Compute
    start: Time
    stop: Time


@dataclass(frozen=True)
class Timeline:
    """The start and end of each stage's computations."""

    spans: list[list[TimedAction]]
    """Spans of each stage, in order."""

    @cached_property
    def length(self) -> Time:
        """The time from the first start to the last stop."""
        return max((span.stop for spans in self.spans for span in spans), default=0)

    @cached_property
    def work(self) -> list[Time]:
        """The time in which each stage computes."""
        return [sum(span.stop - span.start for span in spans) for spans in self.spans]

    @property
    def bubble(self) -> Time:
        """The time in which the stage with the most work does not compute."""
        return self.length - max(self.work)

    @property
    def bubble_share(self) -> Fraction:
        """The bubble as a part of that work: Megatron's bubble time fraction."""
        return Fraction(self.bubble) / Fraction(max(self.work))

    def activations(self, stage: int) -> list[tuple[Time, int]]:
        """(start, activations that the stage keeps from then on) of each of its computations.

        An activation is that of a micro-batch in one chunk; it is kept until its last gradient has been computed.
        """
        spans = self.spans[stage]
        return [(span.start, count) for span, count in zip(spans, kept([s.action for s in spans]), strict=True)]


def simulate(
    entries: Sequence[Sequence[Ordered]], times: Durations | None = None, placement: Placement | None = None
) -> Timeline:
    """Run each stage's list in order, each action as soon as the stage is free and its input has arrived; of a pair the
    forward, then the backward.

    Raises AssertionError if stages wait for each other for ever.
    """
    computes = [list(computes_of(own)) for own in entries]
    play = _Play(computes, times or Times(), placement or Placement(len(computes)))
    while any([play.advance(stage) for stage in range(len(computes))]):
        pass
    stuck = [own[len(done)] for own, done in zip(computes, play.spans, strict=True) if len(done) < len(own)]
    assert not stuck, f"stages wait for each other before {stuck}"
    return Timeline(play.spans)


class _Play:
    """All stages, each as far as its inputs let it."""

    def __init__(self, computes: Sequence[Sequence[Compute]], times: Durations, placement: Placement) -> None:
        self._computes, self._times, self._placement = computes, times, placement
        self._split = any(isinstance(action, WeightGrad) for actions in computes for action in actions)
        self._made: list[dict[Compute, Time]] = [{} for _ in computes]
        self.spans: list[list[TimedAction]] = [[] for _ in computes]

    def advance(self, stage: int) -> bool:
        """Run what `stage` can run now; whether that was anything."""
        computes, spans = self._computes[stage], self.spans[stage]
        before = len(spans)
        while len(spans) < len(computes):
            action = computes[len(spans)]
            arrival = self._arrival(stage, action)
            if arrival is None:
                break
            start = max(spans[-1].stop, arrival) if spans else arrival
            stop = start + self._times.of(action, stage, self._placement.chunks, self._split)
            spans.append(TimedAction(action, start, stop))
            self._made[stage][action] = stop
        return len(spans) > before

    def _arrival(self, stage: int, action: Compute) -> Time | None:
        """The time at which the input of `action` is there; none if it has not been made."""
        source = producer(action, stage, self._placement)
        if source is None:
            return 0
        needed, peer = source
        made = self._made[peer].get(needed)
        if made is None or peer == stage:
            return made
        return made + self._times.transfer
