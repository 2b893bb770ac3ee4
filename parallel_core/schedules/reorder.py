"""Computations moved up by their times and those of messages, within a memory that is given: the reordering of
Qi et al., "Pipeline Parallelism with Controllable Memory", 2024, where a computation has a time and not a tick."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from parallel_core.schedules.actions import Backward, Compute, Forward, Placement, WeightGrad, input_of
from parallel_core.schedules.simulate import Durations, Time, arrival


class Manner(NamedTuple):
    """The freedom of a stage to leave its order. patience: how long it waits for the computation that is first, in
    lengths of the one that it could run instead; keeps_steady: whether it keeps to the order in the steady state."""

    patience: float
    """The longest wait for what the order has first, in lengths of the computation that the stage could run instead."""
    keeps_steady: bool
    """Whether the stage keeps to its order, however long it waits, between the last backward of its first micro-batch
    and the first forward of its last one."""


def moved_up(
    lines: Sequence[Sequence[Compute]], placement: Placement, most: int, times: Durations, manner: Manner
) -> list[list[Compute]]:
    """The forwards and backwards of each stage, without gradients of weights, in an order in which some are moved up to
    times at which the stage would wait.

    lines: the order that is given, with gradients of weights. most: activations (each of a micro-batch in a chunk) that
    a stage may keep in the new order, no fewer than it keeps in the given one. manner: how far a stage may leave its
    order.
    """
    stages = [_Stage(line, number, placement, most, times, manner) for number, line in enumerate(lines)]
    ends = [stage.ends for stage in stages]
    found = [stage.next(ends) for stage in stages]
    while any(stage.left for stage in stages):
        _, number = min((choice.start, number) for number, choice in enumerate(found) if choice)
        choice = found[number]
        assert choice is not None
        stages[number].run(choice)
        for near in range(max(0, number - 1), min(len(stages), number + 2)):
            found[near] = stages[near].next(ends)
    return [stage.line for stage in stages]


class _Choice(NamedTuple):
    """A computation that a stage can run."""

    start: Time
    place: int
    """The computation's place in what is left of the stage's order."""
    arrival: Time
    length: Time


class _Left(NamedTuple):
    """A computation that a stage has not run."""

    action: Compute
    kind: tuple[type[Compute], int]
    kept: int
    """The activations that the computation makes, less those that it frees: 1 for a forward, -1 for a gradient of
    weights."""

    @classmethod
    def of(cls, action: Compute) -> "_Left":
        kept = isinstance(action, Forward) - isinstance(action, WeightGrad)
        return cls(action, (type(action), action.chunk), kept)


class _Stage:
    """The computations that a stage has run, and those that it has not."""

    def __init__(
        self,
        line: Sequence[Compute],
        number: int,
        placement: Placement,
        most: int,
        times: Durations,
        manner: Manner,
    ) -> None:
        self.left, self.line = [_Left.of(action) for action in line], list[Compute]()
        self.ends: dict[Compute, Time] = {}
        self._number, self._placement, self._most, self._times, self._manner = number, placement, most, times, manner
        self._lengths = {
            kind: times.of(action, number, placement.chunks, isinstance(action, Backward))
            for kind, action in {left.kind: left.action for left in self.left}.items()
        }
        self._last = max((action.micro_batch for action in line), default=0)
        self._arrivals: dict[Compute, Time] = {}
        self._clock: Time = 0
        self._kept = 0
        self._weights: list[Time] = []
        """Lengths of the gradients of weights that can run; they are not in `left` any more."""

    def next(self, ends: Sequence[dict[Compute, Time]]) -> _Choice | None:
        """The computation to run next, None if it is not known when one can. ends: for each stage, computation -> its
        end."""
        choices = list(self._choices(ends))
        if self._manner.keeps_steady and Backward(0) in self.ends and Forward(self._last) not in self.ends:
            choices = [one for one in choices if one.place == 0]
        if not choices:
            return None
        first = min(choices)
        return next(one for one in choices if one.start <= first.start + self._manner.patience * first.length)

    def _choices(self, ends: Sequence[dict[Compute, Time]]) -> Iterator[_Choice]:
        """The first computation of each kind (forward or backward of a chunk), if its input has been made. A forward
        that is moved up is kept while the ones before it run: if the stage then kept more than it may, the forward
        stays."""
        now = highest = self._kept - len(self._weights)
        unseen = {kind for kind in self._lengths if kind[0] is not WeightGrad}
        for place, (action, kind, kept) in enumerate(self.left):
            if kind in unseen:
                unseen.remove(kind)
                there = None if kept > 0 and highest >= self._most else self._arrival(action, ends)
                if there is not None:
                    over = self._kept + kept - self._most
                    free = self._clock + (sum(self._weights[:over]) if over > 0 else 0)
                    yield _Choice(max(there, free), place, there, self._lengths[kind])
                if not unseen:
                    return
            now += kept
            highest = max(highest, now)

    def _arrival(self, action: Compute, ends: Sequence[dict[Compute, Time]]) -> Time | None:
        """The time at which the input of `action` is there, None if that has not been made."""
        there = self._arrivals.get(action)
        if there is None and (isinstance(action, Forward) or input_of(action) in self.ends):
            there = arrival(action, self._number, self._placement, ends, self._times.transfer)
            if there is not None:
                self._arrivals[action] = there
        return there

    def run(self, choice: _Choice) -> None:
        """Run the chosen computation, and before it gradients of weights: those that end by the time its input is
        there, and those whose memory it needs."""
        action, _, kept = self.left.pop(choice.place)
        while self._weights and (self._kept + kept > self._most or self._clock + self._weights[0] <= choice.arrival):
            self._clock += self._weights.pop(0)
            self._kept -= 1
        self._clock = self.ends[action] = max(self._clock, choice.arrival) + choice.length
        self.line.append(action)
        self._kept += kept
        if not isinstance(action, Forward):
            weights = WeightGrad(action.micro_batch, action.chunk)
            self.left.remove(_Left.of(weights))
            self._weights.append(self._lengths[WeightGrad, action.chunk])
