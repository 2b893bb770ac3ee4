"""`in_workers`: worker processes that work on items, results in order."""

import os
import signal
from copy import copy

import pytest

from parallel_core.data.workers import in_workers


def doubled(number: int) -> int:
    """Twice the number; a negative one is an error."""
    if number < 0:
        raise ValueError(f"{number} is negative")
    return 2 * number


def interrupted(number: int) -> int:
    """Send SIGINT to this process; the number."""
    os.kill(os.getpid(), signal.SIGINT)
    return number


def killed(number: int) -> int:
    """Send SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_order_is_kept_and_reading_does_not_run_far_ahead_of_writing():
    """Results come in the order of the items, and fewer than 100 items are read ahead of them."""
    items = iter(range(1, 1001))
    found = in_workers(doubled, items, workers=2)
    assert next(found) == 2 and len(list(copy(items))) >= 900
    assert list(found) == [2 * number for number in range(2, 1001)]


def test_an_error_and_a_death_of_a_worker_are_raised_and_ctrl_c_does_not_reach_it():
    """An error in a worker is raised as it is, a killed worker is an error that names --workers, and SIGINT does not
    end workers."""
    with pytest.raises(ValueError, match="-1 is negative"):
        list(in_workers(doubled, [1, -1], workers=2, at_once=1))
    assert list(in_workers(interrupted, range(3), workers=2)) == [0, 1, 2]
    with pytest.raises(ValueError, match="--workers 2: a worker process was killed"):
        list(in_workers(killed, range(3), workers=2))
