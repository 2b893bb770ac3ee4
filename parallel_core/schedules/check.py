"""Prove a schedule before anything runs it."""

from collections import Counter
from collections.abc import Iterator, Sequence

from parallel_core.schedules.actions import Action, Backward, Exchange, Forward, WeightGrad
from parallel_core.schedules.dataflow import consumer, input_of, producer
from parallel_core.schedules.rendezvous import exchanges_end, sends_match_receives


def check(
    schedule: Sequence[Sequence[Action]], micro_batches: int, chunks: int = 1, *, backward: bool = True
) -> list[int]:
    """Raise AssertionError unless the schedule is right; give the most activations that each stage keeps.

    Proven: each stage runs each action exactly once, a backward after its forward, a weight gradient after its
    backward; nothing is computed before its input arrived, nothing sent before it was made, or to where it is not
    needed; sends match receives in order between any two stages; no deadlock even if an exchange waits for all its
    partners. An activation is that of one micro-batch in one chunk, kept until its last gradient.
    """
    _each_action_once(schedule, micro_batches, chunks, backward)
    for stage, actions in enumerate(schedule):
        _inputs_come_first(stage, actions, len(schedule), chunks)
    sends_match_receives(schedule)
    exchanges_end(schedule)
    return [max(kept(actions), default=0) for actions in schedule]


def kept(actions: Sequence[Action]) -> Iterator[int]:
    """How many activations a stage keeps while each computation runs, the one that it makes or frees included.

    Evaluation keeps none.
    """
    kinds = {type(action) for action in actions}
    last = WeightGrad if WeightGrad in kinds else Backward
    count = 0
    for action in actions:
        count += isinstance(action, Forward) and Backward in kinds
        if not isinstance(action, Exchange):
            yield count
        count -= isinstance(action, last)


def _each_action_once(schedule: Sequence[Sequence[Action]], micro_batches: int, chunks: int, backward: bool) -> None:
    split = any(isinstance(action, WeightGrad) for actions in schedule for action in actions)
    kinds = (Forward, *((Backward,) if backward else ()), *((WeightGrad,) if split else ()))
    expected = {kind(m, chunk) for kind in kinds for chunk in range(chunks) for m in range(micro_batches)}
    for stage, actions in enumerate(schedule):
        computed = [action for action in actions if not isinstance(action, Exchange)]
        found = set(computed)
        often = [action for action, count in Counter(computed).items() if count > 1]
        assert found == expected and not often, (
            f"stage {stage}: missing {expected - found}, unexpected {found - expected}, more than once {often}"
        )


def _inputs_come_first(stage: int, actions: Sequence[Action], stages: int, chunks: int) -> None:
    done: set[Action] = set()
    unsent: set[Action] = set()
    arrived: set[Action] = set()
    for action in actions:
        if isinstance(action, Exchange):
            for send in action.sends:
                assert send.produced in unsent, f"stage {stage} sends {send} before it was made, or twice"
                unsent.remove(send.produced)
                assert consumer(send.produced, stage, stages, chunks) == (send.consumed, send.peer), (
                    f"stage {stage} sends {send}, which is not needed there"
                )
            arrived.update(receive.consumed for receive in action.receives)
            continue
        if producer(action, stage, stages, chunks) is not None:
            assert action in arrived, f"stage {stage} runs {action} before its input was received"
        if not isinstance(action, Forward):
            assert input_of(action) in done, f"stage {stage} runs {action} before {input_of(action)}"
        done.add(action)
        unsent.add(action)
