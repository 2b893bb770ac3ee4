"""The time of a schedule: its timeline, its bubble, the activations that it keeps, without a device. Whole numbers and
fractions give exact times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, Protocol

from parallel_core.schedules.actions import (
    Backward,
    Compute,
    Forward,
    Ordered,
    Pair,
    Placement,
    WeightGrad,
    computes_of,
    of_entry,
    producer,
    split_backwards,
)
from parallel_core.schedules.check import kept

Time = int | Fraction | float
"""A time in any unit; sums and comparisons are exact, but of floats."""


class Durations(Protocol):
    """The times of computations, and of messages between stages."""

    @property
    def transfer(self) -> Time:
        """The time of a message: from the end of a computation, or of its pair, to the earliest start of the one that
        takes its result on another stage."""

    def of(self, action: Compute, stage: int, chunks: int, split: bool) -> Time:
        """The time of `action` on `stage`, which has `chunks` chunks. split: whether it is a backward that leaves
        gradients of weights to another action."""

    def saved(self, pair: Pair, stage: int, chunks: int) -> Time:
        """The time by which `pair` on `stage`, which has `chunks` chunks, is shorter than its two computations
        together."""


@dataclass(frozen=True)
class Times:
    """The times of one micro-batch's computations on one stage, all its chunks together, and of one message; `weight`
    is a part of `backward`. `saved_by_pairs`: the time by which the pairs of one micro-batch, of all chunks together,
    are shorter than their computations; each chunk's has an equal part of it. `shares` [chunk][stage]: the part of
    `forward`, `backward` and `weight` that each chunk takes, None: an equal one."""

    forward: Time = 1
    backward: Time = 2
    """Time of gradients of input and of weights together."""
    weight: Time = 1
    """The part of `backward` that makes the gradients of the weights; a time of its own where a schedule splits it."""
    transfer: Time = 0
    """The time of a message: from the end of a computation, or of its pair, to the earliest start of the one that takes
    its result on another stage."""
    saved_by_pairs: Time = 0
    """The time by which the pairs of one micro-batch, of all chunks together, are shorter than their computations:
    messages hidden by the other half."""
    shares: Sequence[Sequence[Time]] | None = None
    """[chunk][stage]: the part of `forward`, `backward` and `weight` that the chunk of the stage takes; None: an equal
    part for each chunk."""

    def of(self, action: Compute, stage: int, chunks: int, split: bool) -> Time:
        """The time of `action` on `stage`, which has `chunks` chunks. split: whether it is a backward that leaves
        gradients of weights to another action."""
        match action:
            case Forward():
                whole = self.forward
            case Backward():
                whole = self.backward - self.weight if split else self.backward
            case WeightGrad():
                whole = self.weight
        if self.shares is not None:
            return whole * self.shares[action.chunk][stage]
        return whole if chunks == 1 else (whole if isinstance(whole, float) else Fraction(whole)) / chunks

    def saved(self, pair: Pair, stage: int, chunks: int) -> Time:
        """The time by which a pair on a stage with `chunks` chunks is shorter than its two computations together:
        `saved_by_pairs` / `chunks`, whatever the pair and the stage."""
        return Fraction(self.saved_by_pairs) / chunks if self.saved_by_pairs else 0


class TimedAction(NamedTuple):
    """One computation and its start and stop."""

    action: Compute
    start: Time
    stop: Time


@dataclass(frozen=True)
class Timeline:
    """The start and end of each stage's computations, in one unit of time."""

    spans: list[list[TimedAction]]
    """Each stage's computations with their times, in order."""

    @cached_property
    def length(self) -> Time:
        """The last stop of any stage; times count from 0."""
        return max((span.stop for spans in self.spans for span in spans), default=0)

    @cached_property
    def work(self) -> list[Time]:
        """For each stage the sum of the times that its computations take on the timeline."""
        return [sum(span.stop - span.start for span in spans) for spans in self.spans]

    @property
    def bubble(self) -> Time:
        """The time in which the stage with the most work does not compute: `length` without that work."""
        return self.length - max(self.work)

    @property
    def bubble_share(self) -> Fraction:
        """The bubble divided by the work of the stage with the most: Megatron's bubble time fraction."""
        return Fraction(self.bubble) / Fraction(max(self.work))

    def activations(self, stage: int) -> list[tuple[Time, int]]:
        """For each of the stage's computations (its start, the number of activations that the stage keeps while it
        runs); the number is 0 if the stage has no backward.

        An activation is that of a micro-batch in one chunk; it is kept until its last gradient has been computed.
        """
        spans = self.spans[stage]
        return [(span.start, count) for span, count in zip(spans, kept([s.action for s in spans]), strict=True)]


def arrival(
    action: Compute, stage: int, placement: Placement, made: Sequence[Mapping[Compute, Time]], transfer: Time
) -> Time | None:
    """The time at which the result that `action` takes from the computation that `producer` names is there: 0 if that
    names none, None if that computation has not run.

    made: for each stage, computation -> its end. transfer: the time of a message from another stage.
    """
    source = producer(action, stage, placement)
    if source is None:
        return 0
    needed, peer = source
    end = made[peer].get(needed)
    return end if end is None or peer == stage else end + transfer


def simulate(
    entries: Sequence[Sequence[Ordered]], times: Durations | None = None, placement: Placement | None = None
) -> Timeline:
    """Run each stage's list in order, each entry as soon as the stage is free and its input has arrived (`arrival`). A
    pair begins when both inputs are there, and is drawn as the forward, then the backward; both results leave at its
    end.

    times: `Times()` if None. placement: one chunk on each stage if None. Raises AssertionError if a stage waits for an
    input that never comes.
    """
    play = Play(entries, times or Times(), placement or Placement(len(entries)))
    while any([play.advance(stage) for stage in range(len(entries))]):
        pass
    play.check_ended()
    return Timeline(play.spans)


class Play:
    """The state of a simulation: for each stage the number of entries that are `done`, and their `spans`."""

    def __init__(self, entries: Sequence[Sequence[Ordered]], times: Durations, placement: Placement) -> None:
        self._entries, self._times, self._placement = entries, times, placement
        self._split = [split_backwards(computes_of(own)) for own in entries]
        self._made: list[dict[Compute, Time]] = [{} for _ in entries]
        self.spans: list[list[TimedAction]] = [[] for _ in entries]
        self.done = [0] * len(entries)

    def check_ended(self) -> None:
        """Raise AssertionError if a stage has entries left."""
        stuck = [own[done] for own, done in zip(self._entries, self.done, strict=True) if done < len(own)]
        assert not stuck, f"stages wait for each other before {stuck}"

    def advance(self, stage: int) -> bool:
        """Run the entries of `stage` in order up to one whose input has not been made; return whether any ran."""
        entries, before = self._entries[stage], self.done[stage]
        while self.done[stage] < len(entries):
            computes = of_entry(entries[self.done[stage]])
            arrivals = [self._arrival(stage, action) for action in computes]
            if None in arrivals:
                break
            self._run(stage, entries[self.done[stage]], max(arrival for arrival in arrivals if arrival is not None))
            self.done[stage] += 1
        return self.done[stage] > before

    def _run(self, stage: int, entry: Ordered, arrival: Time) -> None:
        """Add the spans of an entry that can start at `arrival`, when the last of its inputs is there."""
        spans, split, chunks = self.spans[stage], self._split[stage], self._placement.chunks
        computes, stop = of_entry(entry), max(spans[-1].stop, arrival) if spans else arrival
        for action in computes:
            start, stop = stop, stop + self._times.of(action, stage, chunks, action in split)
            if isinstance(entry, Pair) and action is entry.backward:
                stop -= self._times.saved(entry, stage, chunks)
            spans.append(TimedAction(action, start, stop))
        self._made[stage].update(dict.fromkeys(computes, stop))

    def _arrival(self, stage: int, action: Compute) -> Time | None:
        """The time at which the input of `action` is there; None if it has not been made."""
        return arrival(action, stage, self._placement, self._made, self._times.transfer)
