"""The table of a hang: which ranks are awaited, which members of each message came, and each rank's own answer."""

import pytest

from parallel_core.whereabouts import Standing, Whereabouts, late, table


def waiting(rank: int, *missing: int, members: tuple[int, ...] = (0, 1, 2), group: str = "tp") -> Whereabouts:
    """The answer of a rank that waits in an all_reduce for the ranks `missing`."""
    message = Standing("all_reduce", group, 7, "op=sum float32[2] at x.py:1", members, missing)
    return Whereabouts(rank, 3, layer="decoder.layers.1", action="forward 2.0", waits=True, standing=(message,))


BUSY = Whereabouts(2, 3, part="run > begin", stack=("  File x\n    y()\n",))
UNDER_WAY = Whereabouts(2, 3, standing=waiting(2, 0).standing)
HANGS = {
    "one computes": ([waiting(0, 2), waiting(1, 2), BUSY], {2}),
    "one computes, and has issued something": ([waiting(0, 2), waiting(1, 2), UNDER_WAY], {2}),
    "a chain": ([waiting(0, 1, group="pp"), waiting(1, 2), BUSY], {2}),
    "one without an answer": ([waiting(0, 2), waiting(1, 2)], {2}),
    "two are late": ([waiting(0, 1, 2), BUSY], {1, 2}),
    "a circle": ([waiting(0, 1), waiting(1, 2), waiting(2, 0)], set()),
    "nobody waits": ([BUSY], set()),
}


@pytest.mark.parametrize("name", HANGS)
def test_who_is_awaited(name):
    """`late` gives the ranks that others wait for and that wait for none, also one without an answer, and the table
    marks them."""
    found, expected = HANGS[name]
    assert late(found) == expected
    lines = table(found, 3)
    assert {int(line.split()[0]) for line in lines[1:4] if "<-" in line} >= expected


def test_the_members_of_a_message_that_came():
    """The answers of all ranks together tell which members came to a message: one that is elsewhere did not."""
    lines = table([waiting(0, 1, 2), waiting(1, 2), BUSY], 3)
    assert "all_reduce of group tp, call 7: came 0, 1; did not come 2" in lines


@pytest.mark.parametrize("one", [waiting(1, 2), BUSY])
def test_an_answer_travels_as_text(one):
    """An answer survives packing to text; of a stack that is too long the outermost frames are left out, and of
    too many calls, each of a large group, the last ones."""
    assert Whereabouts.unpacked(one.packed()) == one
    deep = Whereabouts(0, stack=tuple(f"{number} {'x' * 1000}" for number in range(30)))
    kept = Whereabouts.unpacked(deep.packed()).stack
    assert len(deep.packed()) < 14_001 and 5 < len(kept) < 30 and kept[-1].startswith("29")
    calls = tuple(Standing("send", "dp", n, "x", tuple(range(200)), tuple(range(200))) for n in range(12))
    busy = Whereabouts(0, waits=True, standing=calls, stack=("frame",))
    left = Whereabouts.unpacked(busy.packed())
    assert len(busy.packed()) < 14_001 and 0 < len(left.standing) < 12
    assert left.standing == calls[: len(left.standing)] and left.waits


def test_a_rank_says_where_it_is():
    """A rank's lines have iteration, action and layer, the message with the members that came, and stack frames."""
    lines = [*waiting(0, 2).lines(), *BUSY.lines()]
    assert lines[0] == "rank 0 is in iteration 3: forward 2.0, decoder.layers.1"
    assert "came 0, 1; did not come 2" in lines[1] and lines[-1].strip() == "y()"


def test_messages_of_two_groups_of_a_kind_are_told_apart():
    """Two groups of one name that hang in calls of the same number each have a line about their members."""
    lines = table([waiting(0, 1, members=(0, 1)), waiting(2, 3, members=(2, 3))], 4)
    for came, absent in ((0, 1), (2, 3)):
        assert f"all_reduce of group tp, call 7: came {came}; did not come {absent}" in lines
