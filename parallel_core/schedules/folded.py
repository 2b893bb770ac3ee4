"""ZB-V, the schedule of a folded pipeline: a micro-batch goes down the stages and back, its loss is where it began.

So the first stage's backward follows its last forward at once. Activations of one chunk live long where those of the
other live short, and every stage keeps the same (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).
"""

from collections import deque
from collections.abc import Iterable

from parallel_core.schedules.actions import Backward, Compute, Forward, Placement, WeightGrad, consumer

CHUNKS = 2


def zb_v(stages: int, micro_batches: int, chunks: int = CHUNKS, group_size: int | None = None) -> list[list[Compute]]:
    """ZB-V: the memory of 1F1B's first stage, p activations, and about half of ZB-H1's bubble: with forward, backward
    and weight gradient of one length, (p-1)/2 of them, which is when the last stage's first input is there, or p/2.

    Every computation takes one tick; each stage does what it can: backwards and forwards in turns, else a weight
    gradient.
    """
    return _filled(Placement(stages, chunks, folded=True), micro_batches, 2 * stages)


def _filled(placement: Placement, micro_batches: int, most: int) -> list[list[Compute]]:
    """most: activations of a chunk that a stage keeps."""
    assert placement.chunks == CHUNKS, f"a folded pipeline has {CHUNKS} chunks on a stage, not {placement.chunks}"
    ticks = [_Stage(most) for _ in range(placement.stages)]
    ticks[0].forwards[0].extend(range(micro_batches))
    left = 3 * CHUNKS * micro_batches * placement.stages
    while left:
        done = [(number, action) for number, stage in enumerate(ticks) for action in stage.tick()]
        assert done, "a stage waits for memory that another one's backward would free"
        for number, action in done:
            _hand_over(ticks, number, action, placement)
        left -= len(done)
    return [stage.actions for stage in ticks]


def _hand_over(ticks: "list[_Stage]", stage: int, action: Compute, placement: Placement) -> None:
    target = consumer(action, stage, placement)
    if target is not None:
        needs, peer = target
        ticks[peer].queue(needs).append(needs.micro_batch)
    elif isinstance(action, Forward):  # the forward that ends in the loss
        ticks[stage].backwards[action.chunk].append(action.micro_batch)


class _Stage:
    """The work that a stage has done, and the work that it could do now: by chunk the micro-batches whose input is
    there."""

    def __init__(self, most: int) -> None:
        self.actions: list[Compute] = []
        self.forwards: list[deque[int]] = [deque() for _ in range(CHUNKS)]
        self.backwards: list[deque[int]] = [deque() for _ in range(CHUNKS)]
        self._weights: deque[WeightGrad] = deque()
        self._most, self._kept = most, 0
        self._last: Compute | None = None

    def queue(self, action: Compute) -> deque[int]:
        """The queue in which an input of the action is noted."""
        return (self.forwards if isinstance(action, Forward) else self.backwards)[action.chunk]

    def tick(self) -> Iterable[Compute]:
        """Start one computation in this tick, or none."""
        action = self._next()
        if action is None:
            return ()
        self.actions.append(action)
        match action:
            case Forward():
                self._kept += 1
            case Backward():
                self._weights.append(WeightGrad(action.micro_batch, action.chunk))
            case WeightGrad():
                self._kept -= 1
        return (action,)

    def _next(self) -> Compute | None:
        forward, backward = self._forward(), self._backward()
        if forward and backward:
            return self._take(forward if isinstance(self._last, Backward) else backward)
        action = forward or backward
        if action is not None:
            return self._take(action)
        return self._weights.popleft() if self._weights else None

    def _backward(self) -> Backward | None:
        """One on its way to the end of the pipeline first, which frees memory of a whole micro-batch."""
        return next((Backward(queue[0], chunk) for chunk, queue in enumerate(self.backwards) if queue), None)

    def _forward(self) -> Forward | None:
        """The second chunk's first, whose backward is nearer. For it the last place in memory is kept free, without
        which no backward would ever come."""
        for chunk in reversed(range(CHUNKS)):
            reserved = CHUNKS - 1 - chunk
            if self.forwards[chunk] and self._kept < self._most - reserved:
                return Forward(self.forwards[chunk][0], chunk)
        return None

    def _take(self, action: Compute) -> Compute:
        self.queue(action).popleft()
        self._last = action
        return action
