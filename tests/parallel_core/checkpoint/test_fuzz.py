"""Checkpoints with arbitrary changes: reading ends soon, with values or with an error that names file and reason."""

import pytest

from tests.support.checkpoint_fuzz import KINDS, search

pytestmark = pytest.mark.slow

TRIALS = {"native": 200, "mindspore": 100, "hf": 40, "legacy": 6, "torch_dist": 3}
"""Numbers of trials by format; for thousands: `python -m tests.support.checkpoint_fuzz`."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_changed_at_random(tmp_path, kind):
    """Random changes of names, numbers, lengths, bytes and kinds of files in a checkpoint of each format: no traceback,
    no hang, and no file outside is opened."""
    assert search(kind, tmp_path, range(TRIALS[kind.partition("/")[0]])) == []
