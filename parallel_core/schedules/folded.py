"""ZB-V, V-Half and V-Min, schedules of a folded pipeline: a micro-batch goes down the stages and back, its loss is
where it began.

So the first stage's backward of the loss waits for no message. Activations of one chunk live long where those of the
other live short, and stages keep nearly the same (Qi et al., "Zero Bubble Pipeline Parallelism", 2023). The three
differ in how much a stage may keep. Among forwards and backwards, whose order keeps to that memory, gradients of
weights are placed by the times of computations.
"""

from collections.abc import Iterator

from parallel_core.schedules.actions import Backward, Compute, Forward, Placement
from parallel_core.schedules.automatic import EQUAL, LONGEST, Memory, Way, with_weight_gradients
from parallel_core.schedules.building_blocks import Block, half, least, repeated
from parallel_core.schedules.check import kept
from parallel_core.schedules.reorder import Manner, moved_up
from parallel_core.schedules.simulate import Durations, Time

CHUNKS = 2
MANNERS = tuple(Manner(*one) for one in ((1.0, True), (0.5, True), (0.25, True), (0.5, False), (0.25, False)))
ORDERLY = tuple(way._replace(backwards_first=True) for way in LONGEST)
WAYS = *ORDERLY, *(Way(parts=parts) for parts in ((0.25, 0.75), (0.25, 0.5), (0.75, 0.75)))
"""The ways to place gradients of weights of which V-Half and V-Min take the best, by the times. Where memory is short,
a forward waits for gradients that have been put off, so that it may be better to run them in a wait that is too
short."""


def zb_v(
    stages: int,
    micro_batches: int,
    chunks: int = CHUNKS,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """ZB-V: on each of p stages the memory of 1F1B's first one, p micro-batches' activations (2p of a chunk, counted as
    in `automatic.Memory`), and half of ZB-H1's bubble: with p or more micro-batches, if forward, gradient of the input
    and weight gradient take a stage a time t each and messages none, (p-1)/2 t, the time until the last stage has its
    first input.

    Forwards and backwards go in one order whatever their times; gradients of weights are placed by the times.
    group_size: ignored. times, freed: as in `TimedGenerator`. Raises AssertionError for another number of chunks than
    2.
    """
    placement = _placement(stages, chunks)
    lines = [list(_Line(stage, stages, micro_batches).actions()) for stage in range(stages)]
    return with_weight_gradients((lines,), placement, Memory(2 * stages, freed), times or EQUAL, ORDERLY)


def v_half(
    stages: int,
    micro_batches: int,
    chunks: int = CHUNKS,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """V-Half: about half of 1F1B's activations where stages are many: with `freed` 0 each of p stages keeps those of at
    most p + 2 micro-batches in a chunk, half of its layers, where 1F1B's first stage keeps as much as 2p of them.
    group_size: ignored. times, freed: as in `TimedGenerator`. Raises AssertionError for another number of chunks than
    2."""
    return _of_block(half, _placement(stages, chunks), micro_batches, times or EQUAL, freed)


def v_min(
    stages: int,
    micro_batches: int,
    chunks: int = CHUNKS,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """V-Min: about a third of 1F1B's activations where stages are many: with `freed` 0 each of p stages keeps those of
    at most 2p/3 + 3 micro-batches in a chunk, half of its layers, where 1F1B's first stage keeps as much as 2p of them
    (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024). group_size: ignored. times, freed: as in
    `TimedGenerator`. Raises AssertionError for another number of chunks than 2."""
    return _of_block(least, _placement(stages, chunks), micro_batches, times or EQUAL, freed)


def _placement(stages: int, chunks: int) -> Placement:
    assert chunks == CHUNKS, f"a folded pipeline has {CHUNKS} chunks on a stage, not {chunks}"
    return Placement(stages, chunks, folded=True)


def _of_block(
    block: Block, placement: Placement, micro_batches: int, times: Durations, freed: Time
) -> list[list[Compute]]:
    """The computations of each stage by a building block: repeated, moved up within the memory that this takes, with
    gradients of weights placed by the times."""
    lines = repeated(block, placement.stages, micro_batches)
    most = max((count for line in lines for count in kept(line)), default=0)
    orders = [moved_up(lines, placement, most, times, manner) for manner in MANNERS]
    return with_weight_gradients(orders, placement, Memory(most, freed), times, WAYS)


class _Line:
    """The order of one stage's forwards and backwards in ZB-V; a kind (forward or backward of a chunk) without
    micro-batches left is passed over."""

    def __init__(self, stage: int, stages: int, micro_batches: int) -> None:
        self._behind, self._own, self._micro_batches = stages - 1 - stage, stage + 1, micro_batches
        self._next: dict[tuple[type[Compute], int], int] = {}

    def actions(self) -> Iterator[Compute]:
        """The stage's forwards and backwards in order: forwards of chunk 0 until the first micro-batch is back,
        forwards of both chunks until its loss's gradient arrives, then backwards of chunk 1 with a forward of it each,
        at last all four in turns."""
        yield from self._take(2 * self._behind, (Forward, 0))
        yield from self._take(self._own, (Forward, 0), (Forward, 1))
        yield from self._take(self._behind, (Backward, 1), (Forward, 1))
        yield from self._take(2 * self._micro_batches, (Backward, 1), (Forward, 0), (Backward, 0), (Forward, 1))

    def _take(self, rounds: int, *kinds: tuple[type[Compute], int]) -> Iterator[Compute]:
        for _ in range(rounds):
            for kind, chunk in kinds:
                number = self._next.get((kind, chunk), 0)
                if number < self._micro_batches:
                    self._next[kind, chunk] = number + 1
                    yield kind(number, chunk)
