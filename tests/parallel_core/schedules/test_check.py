"""The checker finds what is wrong: each way to break a schedule is refused for its own reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.schedules import (
    FOLDED,
    GENERATORS,
    Backward,
    Exchange,
    Forward,
    Placement,
    Transfer,
    WeightGrad,
    check,
    communicate,
)


def send(action, peer) -> Exchange:
    """An exchange of one send."""
    return Exchange((Transfer(action, action, peer),))


def receive(action, peer) -> Exchange:
    """An exchange of one receive."""
    return Exchange((), (Transfer(action, action, peer),))


F, B, W = Forward(0), Backward(0), WeightGrad(0)
TOWARDS_EACH_OTHER = [
    [F, receive(B, 1), send(F, 1), B],
    [receive(F, 0), F, B, send(B, 0)],
]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([[F]], "missing"),
        ([[F, F, B]], "more than once"),
        ([[F, B, Forward(1)]], "unexpected"),
        ([[B, F]], "runs Backward.* before Forward"),
        ([[F, B], [F, B]], "before its input"),
        ([[F, W, B]], "runs WeightGrad.* before Backward"),
        ([[F, send(F, 1), receive(B, 1), B, W], [receive(F, 0), F, B, send(B, 0)]], "stage 1: missing {WeightGrad"),
        (TOWARDS_EACH_OTHER, "deadlock"),
        ([[send(F, 1), F, receive(B, 1), B], [receive(F, 0), F, B, send(B, 0)]], "before it was made"),
        ([[F, send(F, 1), send(F, 1), receive(B, 1), B], [receive(F, 0), F, B, send(B, 0)]], "or twice"),
        ([[F, B, send(B, 0)]], "not needed there"),
        ([[F, send(F, 1), receive(B, 1), B], [receive(F, 0), F, B]], "is received"),
    ],
)
def test_the_checker_refuses(schedule, message):
    """A missing, a second or a foreign action, wrong orders, missing transfers, a deadlock."""
    with pytest.raises(AssertionError, match=message):
        check(schedule, 1)


SCHEDULES = [
    ("gpipe", 3, 4, 1),
    ("1f1b", 4, 6, 1),
    ("zb-h1", 4, 6, 1),
    ("interleaved", 2, 4, 2),
    ("interleaved", 3, 6, 3),
    ("zb-v", 3, 4, 2),
]


@given(st.data())
def test_no_action_can_be_left_out(data):
    """Drop any one action of any stage, computation or exchange."""
    schedule, micro_batches, placement = built(data)
    actions = data.draw(st.sampled_from(schedule))
    actions.pop(data.draw(st.integers(0, len(actions) - 1)))
    with pytest.raises(AssertionError):
        check(schedule, micro_batches, placement)


@given(st.data())
def test_no_transfer_can_be_left_out(data):
    """Drop any one send or receive of any exchange."""
    schedule, micro_batches, placement = built(data)
    actions = data.draw(st.sampled_from(schedule))
    place = data.draw(st.sampled_from([i for i, action in enumerate(actions) if isinstance(action, Exchange)]))
    exchange = actions[place]
    dropped = data.draw(st.integers(0, len(exchange.sends) + len(exchange.receives) - 1))
    sides = len(exchange.sends)
    actions[place] = Exchange(
        tuple(t for i, t in enumerate(exchange.sends) if i != dropped),
        tuple(t for i, t in enumerate(exchange.receives) if i + sides != dropped),
    )
    with pytest.raises(AssertionError):
        check(schedule, micro_batches, placement)


@given(st.data())
def test_no_result_can_be_sent_early_and_no_input_received_late(data):
    """Swap a computation with the exchange beside it that sends its result or receives its input."""
    schedule, micro_batches, placement = built(data)
    actions = data.draw(st.sampled_from(schedule))
    place = data.draw(st.sampled_from([i for i in range(len(actions) - 1) if depends(actions[i], actions[i + 1])]))
    actions[place], actions[place + 1] = actions[place + 1], actions[place]
    with pytest.raises(AssertionError):
        check(schedule, micro_batches, placement)


def depends(first, second) -> bool:
    """Whether `second` sends what `first` made, or computes with what `first` received."""
    sends = [t.produced for t in second.sends] if isinstance(second, Exchange) else []
    receives = [t.consumed for t in first.receives] if isinstance(first, Exchange) else []
    return first in sends or second in receives


def built(data) -> tuple[list[list], int, Placement]:
    """(a right schedule, its micro-batches, where its chunks are)."""
    name, stages, micro_batches, chunks = data.draw(st.sampled_from(SCHEDULES))
    placement = Placement(stages, chunks, name in FOLDED)
    return communicate(GENERATORS[name](stages, micro_batches, chunks, None), placement), micro_batches, placement
