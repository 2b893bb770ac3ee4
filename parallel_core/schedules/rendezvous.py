"""Prove that the exchanges of all stages meet: what is sent is received, and no stage waits for ever."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from parallel_core.schedules.actions import Action, Exchange

Way = tuple[int, int]
"""(sending stage, receiving stage)."""


def sends_match_receives(schedule: Sequence[Sequence[Action]]) -> None:
    """Raise AssertionError unless each stage receives from each other what that sends, in the same order."""
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
    """Raise AssertionError if stages wait for each other for ever, where an exchange waits for all its partners."""
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
    """The transfers that stages have come to.

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
        """Whether the partner of every transfer of `exchange`, the last that `stage` came to, has been posted."""
        outward = [(stage, t.peer) for t in exchange.sends]
        inward = [(t.peer, stage) for t in exchange.receives]
        sends, receives = self._sends, self._receives
        return all(receives[w] >= sends[w] for w in outward) and all(sends[w] >= receives[w] for w in inward)


def _exchanges(schedule: Sequence[Sequence[Action]]) -> list[list[Exchange]]:
    return [[action for action in actions if isinstance(action, Exchange)] for actions in schedule]
