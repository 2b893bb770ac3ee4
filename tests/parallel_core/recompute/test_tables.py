"""Recompute settings by stage (MindFormers' tables): the forms that they can have, and how layers are dealt to
chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.recompute.tables import as_logged, dealt, table_of, tables_of

COUNTS = [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]
"""Layers by [chunk][stage]: 48 on 5 stages with 2 chunks each, offset [[0,1,1,1,1],[1,1,1,1,0]]."""


@pytest.mark.parametrize(
    ("setting", "table"),
    [
        (True, COUNTS),
        (False, [[0] * 5] * 2),
        ([[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]], [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]]),
        ([2, 1, 0, 0, 0], [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]),
        ((True, 0, False, 10, 9), [[4, 0, 0, 5, 5], [5, 0, 0, 5, 4]]),
        ([True, [0] * 5], [[4, 5, 5, 5, 5], [0] * 5]),
        ([True, [9, 1, True, False, 0]], [[4, 5, 5, 5, 5], [5, 1, 5, 0, 0]]),
        ([[9] * 5, (0, 1, 2, 3, 9)], [[4, 5, 5, 5, 5], [0, 1, 2, 3, 4]]),
    ],
)
def test_forms(setting, table):
    """`table_of` turns true, false, a list by stage or a list by chunk and stage into recomputed layers by
    [chunk][stage]."""
    assert table_of(setting, COUNTS) == table


@pytest.mark.parametrize(
    "setting",
    [
        3,
        [True, False],
        "all",
        1.5,
        [],
        [1, 2],
        [[1, 2]],
        [[1] * 5] * 3,
        [-1, 0, 0, 0, 0],
        [[0.5] * 5] * 2,
        [[1] * 5, 2],
        {},
    ],
)
def test_other_forms_are_refused(setting):
    """A setting of another form or length is an error."""
    with pytest.raises(ValueError, match=r"must be|has "):
        table_of(setting, COUNTS)


def test_patterns():
    """`tables_of` gives a table for each pattern of a list or dictionary, and for true one for each default pattern;
    `as_logged` prints patterns as the user wrote them."""
    two = {"a": COUNTS, r"b\.c": COUNTS}
    assert tables_of(["a", r"b\.c"], COUNTS, ("d",)) == two
    assert tables_of(True, COUNTS, ("d",)) == {"d": COUNTS}
    assert tables_of({"a": [2, 1, 0, 0, 0]}, COUNTS, ("d",)) == {"a": [[1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]}
    assert as_logged({r"b\.c": [[1]]}) == r"{'b\.c': [[1]]}"


@given(
    st.integers(1, 4).flatmap(
        lambda chunks: st.integers(1, 4).flatmap(
            lambda stages: st.tuples(
                st.lists(
                    st.lists(st.integers(0, 6), min_size=stages, max_size=stages), min_size=chunks, max_size=chunks
                ),
                st.lists(st.integers(0, 30), min_size=stages, max_size=stages),
            )
        )
    )
)
def test_dealing_is_even(case):
    """`dealt` gives each stage the layers it asked for, or all it has, spread over its chunks so that they differ by at
    most one unless a chunk is full; earlier chunks get more."""
    counts, layers = case
    table = dealt(layers, counts)
    for stage, wanted in enumerate(layers):
        given_, there = [row[stage] for row in table], [row[stage] for row in counts]
        assert sum(given_) == min(wanted, sum(there))
        assert all(0 <= got <= has for got, has in zip(given_, there, strict=True))
        unfilled = [got for got, has in zip(given_, there, strict=True) if got < has]
        assert not unfilled or max(given_) - min(unfilled) <= 1
        assert unfilled == sorted(unfilled, reverse=True)
