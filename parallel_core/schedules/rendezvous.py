"""Prove that the exchanges of all stages meet: what is sent is received, and no stage waits for ever."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest

from parallel_core.schedules.actions import Action, Exchange

Way = tuple[int, int]
"""(sending stage, receiving stage)."""


def sends_match_receives(schedule: Sequence[Sequence[Action]]) -> None:
    """Raise AssertionError unless each stage receives from each other what that sends, in the same order."""
    sent: defaultdict[Way, list] = defaultdict(list)
    received: defaultdict[Way, list] = defaultdict(list)
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
    """Raise AssertionError if stages wait for each other for ever, where an exchange waits for all its partners.

    The partner of a stage's k-th send to another is the other's k-th receive from it, so it is enough to count them.
    """
    waiting = [exchanges[::-1] for exchanges in _exchanges(schedule)]
    posted = [False] * len(waiting)
    sends: defaultdict[Way, int] = defaultdict(int)
    receives: defaultdict[Way, int] = defaultdict(int)
    ready = list(range(len(waiting)))
    while ready:
        stage = ready.pop()
        if not waiting[stage]:
            continue
        exchange = waiting[stage][-1]
        outward = [(stage, t.peer) for t in exchange.sends]
        inward = [(t.peer, stage) for t in exchange.receives]
        if not posted[stage]:
            posted[stage] = True
            for way in outward:
                sends[way] += 1
            for way in inward:
                receives[way] += 1
            ready += [t.peer for t in (*exchange.sends, *exchange.receives)]
        if all(receives[way] >= sends[way] for way in outward) and all(sends[way] >= receives[way] for way in inward):
            waiting[stage].pop()
            posted[stage] = False
            ready.append(stage)
    stuck = {stage: exchanges[-1] for stage, exchanges in enumerate(waiting) if exchanges}
    assert not stuck, f"deadlock: {stuck}"


def _exchanges(schedule: Sequence[Sequence[Action]]) -> list[list[Exchange]]:
    return [[action for action in actions if isinstance(action, Exchange)] for actions in schedule]
