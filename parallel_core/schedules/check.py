"""Prove a schedule before anything runs it."""

from collections import Counter
from collections.abc import Sequence

from parallel_core.schedules.actions import Action, Backward, Exchange, Forward


def check(schedule: Sequence[Sequence[Action]], micro_batches: int, *, backward: bool = True) -> list[int]:
    """Raise AssertionError unless the schedule is right; give the most micro-batches in flight on each stage.

    Proven: each stage runs each action exactly once, a backward after its forward; nothing is computed before its
    input arrived; sends match receives in order; no deadlock even if a send waits for its receive.
    """
    for stage, actions in enumerate(schedule):
        _each_action_once(stage, actions, micro_batches, backward)
    _run(schedule)
    return [_in_flight(actions) for actions in schedule]


def _each_action_once(stage: int, actions: Sequence[Action], micro_batches: int, backward: bool) -> None:
    expected: list[Action] = [Forward(m) for m in range(micro_batches)]
    expected += [Backward(m) for m in range(micro_batches)] if backward else []
    found = Counter(a for a in actions if not isinstance(a, Exchange))
    assert found == Counter(expected), f"stage {stage} runs {found}, expected each of {expected} once"


def _in_flight(actions: Sequence[Action]) -> int:
    now = most = 0
    for action in actions:
        now += isinstance(action, Forward) - isinstance(action, Backward)
        most = max(most, now)
    return most


def _run(schedule: Sequence[Sequence[Action]]) -> None:
    """Play all stages against each other; an exchange ends when the partner of each of its transfers was posted."""
    position = [0] * len(schedule)
    posted: set[tuple] = set()
    arrived: list[set] = [set() for _ in schedule]
    done: list[set] = [set() for _ in schedule]
    progress = True
    while progress:
        progress = False
        for stage, actions in enumerate(schedule):
            while position[stage] < len(actions) and _step(
                stage, actions[position[stage]], len(schedule), posted, arrived, done
            ):
                position[stage] += 1
                progress = True
    stuck = {s: a[p] for s, (p, a) in enumerate(zip(position, schedule, strict=True)) if p < len(a)}
    assert not stuck, f"deadlock: {stuck}"


def _step(stage: int, action: Action, stages: int, posted: set[tuple], arrived: list[set], done: list[set]) -> bool:
    """Try to finish one action of one stage."""
    if not isinstance(action, Exchange):
        neighbour = stage - 1 if isinstance(action, Forward) else stage + 1
        if 0 <= neighbour < stages:
            assert action in arrived[stage], f"stage {stage} runs {action} before its input was received"
        if isinstance(action, Backward):
            assert Forward(action.micro_batch) in done[stage], f"stage {stage} runs {action} before its forward"
        done[stage].add(action)
        return True
    for send in action.sends:
        assert send.action in done[stage], f"stage {stage} sends the result of {send.action} before running it"
        posted.add(("send", send.action, stage, send.peer))
    for receive in action.receives:
        posted.add(("receive", receive.action, receive.peer, stage))
    partners = [("receive", t.action, stage, t.peer) for t in action.sends]
    partners += [("send", t.action, t.peer, stage) for t in action.receives]
    if not all(partner in posted for partner in partners):
        return False
    arrived[stage].update(t.action for t in action.receives)
    return True
