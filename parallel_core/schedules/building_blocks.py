"""V-Half and V-Min, schedules of a folded pipeline that keep half and a third of 1F1B's activations.

A building block says when each stage runs the four computations of a micro-batch; repeated every six ticks, twice
three computations, it leaves room for the gradients of weights and keeps the same everywhere (Qi et al., "Pipeline
Parallelism with Controllable Memory", 2024). Then every stage moves up what it can without keeping more, and
gradients of weights are placed by the times.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from parallel_core.schedules.actions import (
    Backward,
    Compute,
    Forward,
    Placement,
    WeightGrad,
    input_of,
    producer,
)
from parallel_core.schedules.automatic import Memory, with_weight_gradients
from parallel_core.schedules.check import kept
from parallel_core.schedules.folded import CHUNKS
from parallel_core.schedules.simulate import Durations, Time

Block = Callable[[int, int], tuple[int, int, int, int]]
"""(stages, stage) -> ticks at which the stage runs micro-batch 0: forwards of chunks 0 and 1, backwards of chunks 1 and
0."""
PERIOD = 6
"""Ticks from one micro-batch to the next."""


def v_half(
    stages: int,
    micro_batches: int,
    chunks: int = CHUNKS,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """V-Half: about half of 1F1B's activations. The parameters are those of `TimedGenerator`."""
    return _schedule(_half, Placement(stages, chunks, folded=True), micro_batches, times, freed)


def v_min(
    stages: int,
    micro_batches: int,
    chunks: int = CHUNKS,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """V-Min: about a third of 1F1B's activations, the fewest with which no stage waits in the steady state. The
    parameters are those of `TimedGenerator`."""
    return _schedule(_min, Placement(stages, chunks, folded=True), micro_batches, times, freed)


def _half(stages: int, stage: int) -> tuple[int, int, int, int]:
    back = 3 * stages + (3 if stages % 2 == 0 else 0)
    return 2 * stage, 3 * stages - 2 - stage, back + 2 * stage - 1, back + 3 * stages - 2 - stage


def _min(stages: int, stage: int) -> tuple[int, int, int, int]:
    back = 2 * stages + (2 if stages % 3 == 0 else 0)
    return stage, 2 * stages - 1 - stage, back + stage, back + 2 * stages - 1 - stage


def _schedule(
    block: Block, placement: Placement, micro_batches: int, times: Durations | None, freed: Time
) -> list[list[Compute]]:
    assert placement.chunks == CHUNKS, f"a folded pipeline has {CHUNKS} chunks on a stage, not {placement.chunks}"
    lines = [_repeated(block(placement.stages, stage), micro_batches) for stage in range(placement.stages)]
    most = max((count for line in lines for count in kept(line)), default=0)
    ordered = [
        [action for action in line if not isinstance(action, WeightGrad)] for line in _moved_up(lines, placement, most)
    ]
    return with_weight_gradients(ordered, placement, Memory(most, freed), times)


def _repeated(block: Sequence[int], micro_batches: int) -> list[Compute]:
    """A stage's computations in order, its block repeated for each micro-batch, with gradients of weights in the ticks
    left free."""
    at: dict[int, Compute] = {}
    for number in range(micro_batches):
        four: tuple[Compute, ...] = Forward(number), Forward(number, 1), Backward(number, 1), Backward(number)
        at.update({first + PERIOD * number: action for first, action in zip(block, four, strict=True)})
    line: list[Compute] = []
    left: deque[WeightGrad] = deque()
    for tick in range(max(at, default=-1) + 1):
        action = at.get(tick)
        if isinstance(action, Backward):
            left.append(WeightGrad(action.micro_batch, action.chunk))
        if action is not None:
            line.append(action)
        elif left:
            line.append(left.popleft())
    return [*line, *left]


def _moved_up(lines: Sequence[list[Compute]], placement: Placement, most: int) -> list[list[Compute]]:
    """Each stage's computations in a tighter order: tick by tick it runs the first one that can run, gradients of
    weights if nothing else, and never keeps more than `most` activations."""
    stages = [_Stage(line, number, placement, most) for number, line in enumerate(lines)]
    while any(stage.left for stage in stages):
        moved = [(stage, stage.next(stages)) for stage in stages]
        for stage, place in moved:
            if place is not None:
                stage.run(place)
    return [stage.line for stage in stages]


class _Stage:
    """A stage while its computations are moved up: `line`, those that it has run, and `left`, the others."""

    def __init__(self, line: Sequence[Compute], number: int, placement: Placement, most: int) -> None:
        self.left, self.line = list(line), list[Compute]()
        self._number, self._placement, self._most = number, placement, most
        self._made: set[Compute] = set()
        self._kept = 0
        self._ahead = 2 * PERIOD * placement.stages

    def next(self, stages: "Sequence[_Stage]") -> int | None:
        """The index in `left` of the computation to run in this tick; None if none can run. A forward that is moved up
        is kept while the ones before it run: if the stage then kept too many activations, it stays."""
        now = highest = self._kept
        filler = None
        for place, action in enumerate(islice(self.left, self._ahead)):
            room = not isinstance(action, Forward) or highest < self._most
            if room and self._is_ready(action, stages):
                if not isinstance(action, WeightGrad):
                    return place
                filler = place if filler is None else filler
            now += _change(action)
            highest = max(highest, now)
        return filler

    def run(self, place: int) -> None:
        """Run the computation at this index of `left`."""
        action = self.left.pop(place)
        self.line.append(action)
        self._made.add(action)
        self._kept += _change(action)

    def _is_ready(self, action: Compute, stages: "Sequence[_Stage]") -> bool:
        if not isinstance(action, Forward) and input_of(action) not in self._made:
            return False
        source = producer(action, self._number, self._placement)
        return source is None or source[0] in stages[source[1]]._made


def _change(action: Compute) -> int:
    """Activations that a computation makes, less those that it frees: 1 for a forward, -1 for a gradient of weights, 0
    for a backward."""
    return isinstance(action, Forward) - isinstance(action, WeightGrad)
