"""Gradients of weights placed by the times of computations and messages: the automatic scheduler of Qi et al., "Zero
Bubble Pipeline Parallelism", 2023, section 3, for forwards and backwards in any order.

A stage runs gradients of weights where it would wait for others at least as long as they take, and where it would keep
too much. Where the wait is shorter than one takes, it may run one all the same (`Way`).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from parallel_core.schedules.actions import Backward, Compute, Forward, Placement, WeightGrad
from parallel_core.schedules.simulate import Durations, Time, Times, arrival

EQUAL = Times(1.0, 2.0, 1.0, 0.0)
"""Times in which forward, gradients of input and gradients of weights take equally long, and messages take no time."""


class Memory(NamedTuple):
    """The memory of a stage, counted in activations of one micro-batch in one chunk: the most that it keeps as long as
    a gradient of weights is left that would free some, and the part of one (0 to 1) that its backward frees before its
    gradients of weights."""

    most: int
    """The most activations that a stage keeps as long as a gradient of weights is left that would free some."""
    freed: Time = 0
    """The part (0 to 1) of an activation that its backward frees; its gradients of weights need the rest. 0 is the safe
    side, half is what Qi et al. count."""


Order = Sequence[Sequence[Compute]]
"""Forwards and backwards of each stage."""


class Way(NamedTuple):
    """The rule by which a stage that waits runs a gradient of weights: if the wait lasts at least `parts` of the
    gradient's duration; with `longest` also in a shorter wait that makes the stage the one that has waited most and,
    where the order was simulated before, its waits in both simulations together longer than any stage's in the one
    before. Of either's two values the first is for waits before forwards, the second for waits before backwards.
    backwards_first: whether in each round of the simulation stages whose turn is a backward go first."""

    longest: tuple[bool, bool] = (False, False)
    """Whether a stage may run a gradient of weights that takes longer than the wait, where the wait makes it the stage
    that has waited most: before forwards, before backwards. If the order was simulated before, it must also have waited
    longer, in both simulations together, than any stage in the one before."""
    parts: tuple[float, float] = (1.0, 1.0)
    """The part of a weight gradient's duration that the wait must last at least for a stage to run it without
    `longest`, before forwards and before backwards; the rest delays the stage."""
    backwards_first: bool = False
    """Whether in each round the stages whose turn is a backward go first, then those with a forward: none is then far
    ahead when its waiting is compared with that of others."""


LONGEST = tuple(Way(longest) for longest in ((True, True), (True, False), (False, True), (False, False)))
"""The ways of Qi et al.: `longest` in all its values."""


def with_weight_gradients(
    orders: Iterable[Order],
    placement: Placement,
    memory: Memory,
    times: Durations,
    ways: Sequence[Way] = LONGEST,
) -> list[list[Compute]]:
    """The computations of each stage: forwards and backwards in the one of `orders`, gradients of weights among them in
    the one of `ways`, with which the longest time of a stage, from its first forward to its last gradients, is
    shortest. Every pair of an order and a way is simulated, then again with each stage's waiting time of the simulation
    before, for as long as this shortens that time. Raises AssertionError if the stages of an order wait for each other
    for ever, and if there is no order or no way."""
    best: _Play | None = None
    for lines, way in product(orders, ways):
        play: _Play | None = _Play(lines, placement, memory, times, way, [0] * len(lines)).run()
        while play is not None:
            if best is None or play.length < best.length:
                best = play
            again = _Play(lines, placement, memory, times, way, play.waited).run()
            play = again if again.length < play.length else None
    assert best is not None
    return best.made


def warm_up(stages: int, most: int, times: Durations) -> list[int]:
    """The number of forwards that each stage, with one chunk, runs before its first backward.

    A stage's number is that of the forwards that fit, one right after another, between the arrivals of its first input
    and of the first gradient from the next stage, but at least one more than the next stage's number, and in any case
    at most `most` and at least 1; the last stage's is 1.
    """
    first, gradient = Forward(0), Backward(0)
    forward = [times.of(first, stage, 1, False) for stage in range(stages)]
    start = [sum(forward[:stage]) + stage * times.transfer for stage in range(stages)]
    arrival = start[-1] + forward[-1]
    counts = [1]
    for stage in reversed(range(stages - 1)):
        arrival += times.of(gradient, stage + 1, 1, True) + times.transfer
        fitting = int((arrival - start[stage]) / forward[stage]) if forward[stage] else most
        counts.append(max(1, min(most, max(fitting, counts[-1] + 1))))
        arrival = max(arrival, start[stage] + counts[-1] * forward[stage])
    return counts[::-1]


class _Play:
    """One play of all stages in turns, an entry each where its input is there; clocks are the times at which
    computations end."""

    def __init__(
        self,
        lines: Order,
        placement: Placement,
        memory: Memory,
        times: Durations,
        way: Way,
        waited_before: Sequence[Time],
    ) -> None:
        self._lines, self._placement, self._memory, self._times = lines, placement, memory, times
        self._way = way
        self._less = [max(waited_before) - before for before in waited_before]
        stages = range(len(lines))
        self.made: list[list[Compute]] = [[] for _ in stages]
        self.waited: list[Time] = [0 for _ in stages]
        self._begun: list[Time | None] = [None for _ in stages]
        self._clock: list[Time] = [0 for _ in stages]
        self._kept: list[Time] = [0 for _ in stages]
        self._left: list[deque[WeightGrad]] = [deque() for _ in stages]
        self._ends: list[dict[Compute, Time]] = [{} for _ in stages]

    @property
    def length(self) -> Time:
        """The longest time of any stage, from the start of its first forward to the end of its last gradients."""
        return max(stop - (start or 0) for start, stop in zip(self._begun, self._clock, strict=True))

    def run(self) -> "_Play":
        """Play all forwards and backwards, then the gradients of weights that are left; return this play, whose `made`
        has each stage's computations. Raises AssertionError if stages wait for each other for ever."""
        todo = [deque(line) for line in self._lines]
        while any(todo):
            before = sum(map(len, todo))
            for kinds in ((Backward,), (Forward,)) if self._way.backwards_first else ((Backward, Forward),):
                for stage, line in enumerate(todo):
                    if line and isinstance(line[0], kinds):
                        self._enter(line, stage)
            assert sum(map(len, todo)) < before, "stages wait for each other"
        for stage, left in enumerate(self._left):
            while left:
                self._weights(stage)
        return self

    def _enter(self, line: deque[Compute], stage: int) -> None:
        """Run the next computation of a stage, the first of `line`, if its input has been made."""
        there = arrival(line[0], stage, self._placement, self._ends, self._times.transfer)
        if there is not None:
            self._fill(line[0], stage, there)
            self._compute(line.popleft(), stage, there)

    def _fill(self, action: Compute, stage: int, arrival: Time) -> None:
        """Run gradients of weights before `action`, whose input is there at `arrival`: those that fit into the wait or
        have to free memory."""
        left, is_forward = self._left[stage], isinstance(action, Forward)
        part, longest = self._way.parts[not is_forward], self._way.longest[not is_forward]
        while is_forward and left and self._kept[stage] + 1 > self._memory.most:
            self._weights(stage)
        while left and self._clock[stage] + part * self._duration(left[0], stage) <= arrival:
            self._weights(stage)
        gap = arrival - self._clock[stage]
        if longest and left and gap > 0 and self.waited[stage] + gap > max(*self.waited, self._less[stage]):
            self._weights(stage)

    def _compute(self, action: Compute, stage: int, arrival: Time) -> None:
        start = max(self._clock[stage], arrival)
        if self._begun[stage] is None:
            self._begun[stage] = start
        else:
            self.waited[stage] += start - self._clock[stage]
        if isinstance(action, Forward):
            self._kept[stage] += 1
        else:
            self._kept[stage] -= self._memory.freed
            self._left[stage].append(WeightGrad(action.micro_batch, action.chunk))
        self._clock[stage] = self._ends[stage][action] = start + self._duration(action, stage)
        self.made[stage].append(action)

    def _weights(self, stage: int) -> None:
        action = self._left[stage].popleft()
        self._kept[stage] -= 1 - self._memory.freed
        self._clock[stage] += self._duration(action, stage)
        self.made[stage].append(action)

    def _duration(self, action: Compute, stage: int) -> Time:
        return self._times.of(action, stage, self._placement.chunks, isinstance(action, Backward))
