"""How fast a writer in the background works."""

import threading
from unittest.mock import patch

import numpy as np

from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.pace import REST, Pace
from parallel_core.checkpoint.writer import LocalTensor
from parallel_core.sharding import ShardSpec, place


def test_a_writer_rests_for_what_it_worked_since_its_last_rest_before_it_reads_a_tensor():
    """Half a second of the processor's time before the first tensor, a quarter between it and the second."""
    spec, pace, rests = ShardSpec(shape=(2,), name="w"), Pace(), []
    tensor = pace.of(LocalTensor(place(spec, {}), of_array(np.arange(2.0))))
    with (
        patch("time.thread_time", side_effect=[0.5, 0.5, 0.75, 0.75]),
        patch.object(threading.Event, "wait", lambda event, seconds: rests.append(seconds)),
    ):
        assert tensor.values.read().tolist() == tensor.values.read().tolist() == [0.0, 1.0]
    assert rests == [0.5 * REST, 0.25 * REST]


def test_a_writer_that_is_waited_for_does_not_rest():
    """An hour's work would else be followed by hours of rest."""
    pace = Pace()
    pace.hurry()
    with patch("time.thread_time", return_value=3600.0):
        pace.rest()


def test_a_rest_ends_when_somebody_begins_to_wait():
    """As at the end of a run, or when the next checkpoint is due."""
    pace = Pace()
    with patch("time.thread_time", return_value=3600.0):
        resting = threading.Thread(target=pace.rest, daemon=True)
        resting.start()
        pace.hurry()
        resting.join(60)
    assert not resting.is_alive()
