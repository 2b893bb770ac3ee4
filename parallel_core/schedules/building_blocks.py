"""The building blocks of V-Half and V-Min, which keep about half and a third of the activations of 1F1B's first
stage where stages are many.

A block says when each stage runs the four computations of a micro-batch, forwards and backwards of two chunks. Repeated
every six ticks it leaves two for the gradients of weights, and all stages keep nearly the same number of activations
(Qi et al., "Pipeline Parallelism with Controllable Memory", 2024).
"""

from collections import deque
from collections.abc import Callable, Sequence

from parallel_core.schedules.actions import Backward, Compute, Forward, WeightGrad

Block = Callable[[int, int], tuple[int, int, int, int]]
"""(stages, stage) -> ticks at which the stage runs micro-batch 0: forwards of chunks 0 and 1, backwards of chunks 1 and
0."""
PERIOD = 6
"""Ticks from one micro-batch to the next."""


def half(stages: int, stage: int) -> tuple[int, int, int, int]:
    """The ticks at which a stage runs micro-batch 0 in V-Half's block: the forward of chunk 0, of chunk 1, the backward
    of chunk 1, of chunk 0. From stage to stage forwards take two ticks on the way there and one on the way back, and so
    do backwards."""
    back = 3 * stages + (3 if stages % 2 == 0 else 0)
    return 2 * stage, 3 * stages - 2 - stage, back + 2 * stage - 1, back + 3 * stages - 2 - stage


def least(stages: int, stage: int) -> tuple[int, int, int, int]:
    """The ticks at which a stage runs micro-batch 0 in V-Min's block: the forward of chunk 0, of chunk 1, the backward
    of chunk 1, of chunk 0. From stage to stage forwards and backwards take one tick."""
    back = 2 * stages + (2 if stages % 3 == 0 else 0)
    return stage, 2 * stages - 1 - stage, back + stage, back + 2 * stages - 1 - stage


def repeated(block: Block, stages: int, micro_batches: int) -> list[list[Compute]]:
    """The computations of each stage, which runs each micro-batch six ticks after the one before, at the ticks of
    block(stages, stage) for the first; gradients of weights, in the order of the backwards, where that leaves a tick
    free, and the rest at the end."""
    return [_line(block(stages, stage), micro_batches) for stage in range(stages)]


def _line(block: Sequence[int], micro_batches: int) -> list[Compute]:
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
