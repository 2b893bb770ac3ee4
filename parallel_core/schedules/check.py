"""Prove a schedule before anything runs it."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from parallel_core.schedules.actions import (
    Action,
    Backward,
    Compute,
    Exchange,
    Forward,
    Placement,
    WeightGrad,
    computes_of,
    consumer,
    frees,
    input_of,
    of_entry,
    producer,
    split_backwards,
)

Way = tuple[int, int]
"""(sending stage, receiving stage)."""


def sends_match_receives(schedule: Sequence[Sequence[Action]]) -> None:
    """Raise AssertionError unless each stage receives from every other stage exactly the tensors that the other sends
    to it, in the same order."""
    sent: defaultdict[Way, list[Any]] = defaultdict(list)
    received: defaultdict[Way, list[Any]] = defaultdict(list)
    for stage, exchanges in enumerate(_exchanges(schedule)):
        for exchange in exchanges:
            for t in exchange.sends:
                sent[stage, t.peer].append((t.produced, t.consumed))
            for t in exchange.receives:
                received[t.peer, stage].append((t.produced, t.consumed))
    for source, destination in sent.keys() | received.keys():
        pairs = zip_longest(sent[source, destination], received[source, destination])
        for number, (send, receive) in enumerate(pairs):
            assert send == receive, (
                f"transfer {number} from stage {source} to {destination} (made, needed): {send} is sent, {receive} "
                "is received"
            )


def exchanges_end(schedule: Sequence[Sequence[Action]]) -> None:
    """Raise AssertionError if an exchange waits for ever, where each one waits for all its partners."""
    left = [exchanges[::-1] for exchanges in _exchanges(schedule)]
    posted = _Posted()
    for stage, exchanges in enumerate(left):
        posted.add(stage, exchanges[-1:])
    progress = True
    while progress:
        progress = False
        for stage, exchanges in enumerate(left):
            while exchanges and posted.partners_of(stage, exchanges[-1]):
                exchanges.pop()
                posted.add(stage, exchanges[-1:])
                progress = True
    stuck = {stage: exchanges[-1] for stage, exchanges in enumerate(left) if exchanges}
    assert not stuck, f"deadlock: {stuck}"


class _Posted:
    """The sends and receives that stages have posted so far, counted for each sending and receiving stage.

    The partner of a stage's k-th send to another is the other's k-th receive from it, so it is enough to count them.
    """

    def __init__(self) -> None:
        self._sends: defaultdict[Way, int] = defaultdict(int)
        self._receives: defaultdict[Way, int] = defaultdict(int)

    def add(self, stage: int, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            for t in exchange.sends:
                self._sends[stage, t.peer] += 1
            for t in exchange.receives:
                self._receives[t.peer, stage] += 1

    def partners_of(self, stage: int, exchange: Exchange) -> bool:
        """Whether every transfer of `exchange`, the last one that `stage` has posted, has its partner posted by the
        other stage."""
        outward = [(stage, t.peer) for t in exchange.sends]
        inward = [(t.peer, stage) for t in exchange.receives]
        sends, receives = self._sends, self._receives
        return all(receives[w] >= sends[w] for w in outward) and all(sends[w] >= receives[w] for w in inward)


def _exchanges(schedule: Sequence[Sequence[Action]]) -> list[list[Exchange]]:
    return [[action for action in actions if isinstance(action, Exchange)] for actions in schedule]


def check(
    schedule: Sequence[Sequence[Action]],
    micro_batches: int,
    placement: Placement | None = None,
    *,
    backward: bool = True,
    some_whole: bool = False,
) -> list[int]:
    """Raise AssertionError unless the schedule is right; return the largest number of activations that each stage
    keeps (0 without backwards).

    Proven: each stage runs each action exactly once, a backward after its forward, a weight gradient after its
    backward; nothing is computed before its input arrived, nothing sent before it was made, or to where it is not
    needed; sends match receives in order between any two stages; no deadlock even if an exchange waits for all its
    partners.

    An activation is that of one micro-batch in one chunk, kept until its last gradient. placement: None is one chunk on
    each stage. backward: false for evaluation. some_whole: a backward need not have a weight gradient of its own where
    others have.
    """
    placement = placement or Placement(len(schedule))
    _each_action_once(schedule, micro_batches, placement.chunks, backward, some_whole)
    for stage, actions in enumerate(schedule):
        _inputs_come_first(stage, actions, placement)
    sends_match_receives(schedule)
    exchanges_end(schedule)
    return [max(kept(actions), default=0) for actions in schedule]


def kept(actions: Sequence[Action]) -> Iterator[int]:
    """The number of activations that a stage keeps while each of its computations runs, in order, the one that it makes
    or frees included; 0 for evaluation."""
    computes = list(computes_of(actions))
    trains, split = any(isinstance(action, Backward) for action in computes), split_backwards(computes)
    count = 0
    for action in computes:
        count += trains and isinstance(action, Forward)
        yield count
        count -= frees(action, split)


def _each_action_once(
    schedule: Sequence[Sequence[Action]], micro_batches: int, chunks: int, backward: bool, some_whole: bool
) -> None:
    split = any(isinstance(action, WeightGrad) for actions in schedule for action in actions)

    def every(*kinds: type[Compute]) -> set[Compute]:
        return {kind(m, chunk) for kind in kinds for chunk in range(chunks) for m in range(micro_batches)}

    needed = every(Forward, *((Backward,) if backward else ()), *((WeightGrad,) if split and not some_whole else ()))
    allowed = needed | (every(WeightGrad) if some_whole else set())
    for stage, actions in enumerate(schedule):
        computed = list(computes_of(actions))
        found = set(computed)
        often = [action for action, count in Counter(computed).items() if count > 1]
        assert needed <= found <= allowed and not often, (
            f"stage {stage}: missing {needed - found}, unexpected {found - allowed}, more than once {often}"
        )


def _inputs_come_first(stage: int, actions: Sequence[Action], placement: Placement) -> None:
    done: set[Action] = set()
    unsent: set[Action] = set()
    arrived: set[Action] = set()
    for action in actions:
        if isinstance(action, Exchange):
            for send in action.sends:
                assert send.produced in unsent, f"stage {stage} sends {send} before it was made, or twice"
                unsent.remove(send.produced)
                assert consumer(send.produced, stage, placement) == (send.consumed, send.peer), (
                    f"stage {stage} sends {send}, which is not needed there"
                )
            arrived.update(receive.consumed for receive in action.receives)
            continue
        for compute in of_entry(action):
            source = producer(compute, stage, placement)
            if source is not None:
                made, peer = source
                is_there = made in done if peer == stage else compute in arrived
                assert is_there, f"stage {stage} runs {compute} before its input was received"
            if not isinstance(compute, Forward):
                assert input_of(compute) in done, f"stage {stage} runs {compute} before {input_of(compute)}"
        done.update(of_entry(action))
        unsent.update(of_entry(action))
