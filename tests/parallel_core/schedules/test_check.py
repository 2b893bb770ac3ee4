"""The checker of schedules: each way to break one is refused, with its own reason."""

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
    """An exchange that sends the result of `action` to stage `peer`."""
    return Exchange((Transfer(action, action, peer),))


def receive(action, peer) -> Exchange:
    """An exchange that receives the input of `action` from stage `peer`."""
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
    """`check` refuses a missing, repeated or foreign action, wrong orders, missing transfers and a deadlock, each with
    its message."""
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
    """A right schedule without any one computation or exchange of a stage is refused."""
    schedule, micro_batches, placement = built(data)
    actions = data.draw(st.sampled_from(schedule))
    actions.pop(data.draw(st.integers(0, len(actions) - 1)))
    with pytest.raises(AssertionError):
        check(schedule, micro_batches, placement)


@given(st.data())
def test_no_transfer_can_be_left_out(data):
    """A right schedule without any one send or receive is refused."""
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
    """A right schedule in which a computation changes places with the neighbouring exchange that sends its result or
    receives its input is refused."""
    schedule, micro_batches, placement = built(data)
    actions = data.draw(st.sampled_from(schedule))
    place = data.draw(st.sampled_from([i for i in range(len(actions) - 1) if depends(actions[i], actions[i + 1])]))
    actions[place], actions[place + 1] = actions[place + 1], actions[place]
    with pytest.raises(AssertionError):
        check(schedule, micro_batches, placement)


def depends(first, second) -> bool:
    """Whether `second` sends what `first` computed, or computes with what `first` received."""
    sends = [t.produced for t in second.sends] if isinstance(second, Exchange) else []
    receives = [t.consumed for t in first.receives] if isinstance(first, Exchange) else []
    return first in sends or second in receives


def built(data) -> tuple[list[list], int, Placement]:
    """(a right schedule drawn from `SCHEDULES`: actions of each stage, its number of micro-batches, its placement of
    chunks)."""
    name, stages, micro_batches, chunks = data.draw(st.sampled_from(SCHEDULES))
    placement = Placement(stages, chunks, name in FOLDED)
    return communicate(GENERATORS[name](stages, micro_batches, chunks, None), placement), micro_batches, placement
