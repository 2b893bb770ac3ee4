"""Hot experts (--hot-expert-num): which are chosen, in which steps, their capacity, and the slots that tokens are sent
to."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.moe.hot_experts import Slots, capacities, first_hot, hottest, is_revised


def test_steps_of_revision():
    """`is_revised`: hot experts are chosen anew in steps that are powers of two, up to the update interval, and then in
    its multiples."""
    revised = [step for step in range(1, 45) if is_revised(step, 10)]
    assert revised == [1, 2, 4, 8, 10, 20, 30, 40]
    assert is_revised(8192, 10000) and not is_revised(16384, 10000) and is_revised(20000, 10000)


def test_the_hottest():
    """`hottest` gives the experts with most tokens by ascending number; of equal ones the first. `first_hot(n)` are
    experts 0 to n - 1."""
    assert first_hot(3) == (0, 1, 2)
    assert hottest(np.array([3, 9, 9, 1, 9]), 2) == (1, 2)
    assert hottest(np.array([3, 9, 9, 1, 9]), 4) == (0, 1, 2, 4)
    assert hottest(np.array([1, 2]), 0) == ()


def test_capacities():
    """`capacities` gives hot experts the whole capacity and the others its cold share, rounded down."""
    assert capacities(7, 0.5, (1, 3), 4).tolist() == [3, 7, 3, 7]
    assert capacities(7, 1.0, (), 2).tolist() == [7, 7]


@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_slots(owners, each, data):
    """`Slots.with_copies`: each expert has another slot; a hot one's is on the token's own rank, behind its own
    experts, a cold one's on its owner; `rows` puts counts by expert at their slots."""
    experts = owners * each
    hot = tuple(sorted(data.draw(st.sets(st.integers(0, experts - 1)))))
    own = data.draw(st.integers(0, owners - 1))
    slots = Slots.with_copies(hot, experts, owners, own)
    size = each + len(hot)
    assert slots.total == owners * size and len(set(slots.number.tolist())) == experts
    for expert, slot in enumerate(slots.number.tolist()):
        if expert in hot:
            assert slot == own * size + each + hot.index(expert)
        else:
            assert divmod(slot, size) == divmod(expert, each)
    assert slots.of(np.array([[0, -1]])).tolist() == [[slots.number[0], -1]]
    rows = slots.rows(np.arange(experts) + 1)
    assert rows[slots.number].tolist() == list(range(1, experts + 1)) and rows.sum() == sum(range(1, experts + 1))


def test_without_copies_slots_are_the_experts():
    """Slot n is expert n without hot experts, and `has_copies` is false."""
    slots = Slots.plain(4)
    assert slots.number.tolist() == [0, 1, 2, 3] and not slots.has_copies
    assert not Slots.with_copies((), 4, 2, 0).has_copies and Slots.with_copies((1,), 4, 2, 0).has_copies
