"""Schedules are proven here, without a device."""

import pytest

from parallel_core.partition import layer_ranges, layers_per_stage
from parallel_core.schedules import Backward, Exchange, Forward, Transfer, check, communicate, forward_only, one_f_one_b


@pytest.mark.parametrize("stages", range(1, 9))
def test_one_f_one_b_is_right_and_frugal(stages):
    """Every number of micro-batches up to 32: proven, and stage i never holds more than p - i micro-batches."""
    for micro_batches in range(1, 33):
        in_flight = check(communicate(one_f_one_b(stages, micro_batches)), micro_batches)
        assert in_flight == [min(stages - stage, micro_batches) for stage in range(stages)]


def test_forward_only():
    """Evaluation runs no backward."""
    check(communicate(forward_only(4, 5)), 5, backward=False)


def test_neighbours_meet_in_one_exchange():
    """What 1F1B's steady state needs: a send forward together with a receive backward."""
    first, last = communicate(one_f_one_b(2, 2))
    assert Exchange((Transfer(Forward(1), 1),), (Transfer(Backward(0), 1),)) in first
    assert Exchange((Transfer(Backward(0), 0),), (Transfer(Forward(1), 0),)) in last


def send(action, peer) -> Exchange:
    """An exchange of one send."""
    return Exchange((Transfer(action, peer),))


def receive(action, peer) -> Exchange:
    """An exchange of one receive."""
    return Exchange((), (Transfer(action, peer),))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([[Forward(0)]], "expected each"),
        ([[Backward(0), Forward(0)]], "before its forward"),
        ([[Forward(0), Backward(0)], [Forward(0), Backward(0)]], "before its input"),
        (
            [
                [Forward(0), receive(Backward(0), 1), send(Forward(0), 1), Backward(0)],
                [receive(Forward(0), 0), Forward(0), Backward(0), send(Backward(0), 0)],
            ],
            "deadlock",
        ),
        ([[Exchange((Transfer(Forward(0), 1),)), Forward(0), Backward(0)]], "before running it"),
    ],
)
def test_the_checker_refuses(schedule, message):
    """A missing action, a wrong order, a missing receive, a deadlock, a premature send."""
    with pytest.raises(AssertionError, match=message):
        check(schedule, 1)


def test_layers_left_over_go_to_the_last_stage_but_one_first():
    """The stages with the embedding and the output layer stay light."""
    assert layers_per_stage(10, 4) == [2, 3, 3, 2]
    assert layers_per_stage(11, 4) == [3, 3, 3, 2]
    assert layers_per_stage(3, 2) == [2, 1]
    assert layer_ranges(6, 2, [2, 4]) == [range(0, 2), range(2, 6)]


@pytest.mark.parametrize("layers, stages, given", [(6, 2, [3, 4]), (6, 2, [6]), (6, 2, [6, 0]), (1, 2, None)])
def test_bad_partitions_are_refused(layers, stages, given):
    """The message names the flag."""
    with pytest.raises(ValueError, match="--num-layer"):
        layers_per_stage(layers, stages, given)
