"""The record of a call, which travels ahead of its data."""

import os
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest

from pynative.collectives.errors import CollectiveMismatch
from pynative.collectives.ledger import Call, call_site, check, record_bytes
from pynative.collectives.trace import Trace
from pynative.collectives.wire.arena import Arena, ChannelLayout
from pynative.collectives.wire.mailbox import COLLECTIVE, Channels
from pynative.collectives.wire.shared_memory import SharedMemoryGroup


@pytest.mark.parametrize("ranks", [2, 300])
def test_a_record_has_room_in_a_group_of_any_size(ranks):
    """The first of `ranks` ranks posts its part of an all_to_all, and the second reads the row counts of all of them:
    of 300 ranks they are more than a page."""
    memory = Arena.create(ranks)
    network = SimpleNamespace(peers={}, await_consumed=lambda *_: None)
    sender, reader = (Channels(Arena(memory, rank, ranks), lambda rank: None, network) for rank in (0, 1))
    os.close(memory)
    engine = SimpleNamespace(arena=sender.arena, channels=sender, issue=lambda lane, steps, label, count: next(steps))
    group = SharedMemoryGroup(engine, Trace(), range(ranks), "all")
    sent, expected = [*range(1, ranks + 1)], [1, *range(ranks, 1, -1)]
    rows = ms.Tensor(np.arange(sum(sent), dtype=np.float32))
    group.all_to_all(rows, input_splits=sent, output_splits=expected, async_op=True)
    layout = ChannelLayout(COLLECTIVE.slots, COLLECTIVE.slot_bytes, record_bytes(ranks))
    inbox = reader.inbox((group.ranks, "collective"), 0, group.ranks[1:], layout)
    assert inbox.arrived()
    assert Call.unpacked(reader.arena.memory, inbox.header()).rows == (tuple(sent), tuple(expected))
    np.testing.assert_array_equal(inbox.view(np.dtype(np.float32), 2), [1, 2])


def test_a_signature_that_is_cut_within_a_character_is_compared():
    """Signatures that differ, and are cut at 2,048 bytes in the middle of a character, are CollectiveMismatch that
    names both calls."""
    calls = [Call("x" * 2046 + "\u20ac", "a.py:1", 1), Call("y" + "x" * 2046 + "\u20ac", "b.py:2", 1)]
    for mine, theirs in (calls, calls[::-1]):
        with pytest.raises(CollectiveMismatch, match=r"a.py:1.*b.py:2"):
            check(theirs.packed(), 0, mine, calls.index(mine), calls.index(theirs), "dp")


def test_equal_code_of_two_files_has_two_sites():
    """A call is named by the file that it is in, also if another file has the same lines."""
    for name in ("first.py", "second.py"):
        names = {"call_site": call_site}
        exec(compile("def site():\n    return call_site()\n", name, "exec"), names)
        assert names["site"]() == f"{name}:2"
