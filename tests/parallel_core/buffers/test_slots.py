"""ZeRO's stages 2 and 3 as a plan: what a rank keeps, where the rest lies for a moment, what is gathered when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.buffers.layout import BucketRule, plan_buffers
from parallel_core.buffers.slots import Visits, gathered, micro_batch_visits, plan_residence, slot_of
from parallel_core.sharding import ShardSpec, place

GROUP = "intra-dp-cp"

sizes = st.lists(st.lists(st.integers(1, 700), min_size=1, max_size=4), min_size=1, max_size=6)
"""Sizes of the parameters of each cell."""


def planned(
    cells: list[list[int]], replicas: int, stage: int, rank: int = 0, tied: bool = False, gathers_again: bool = True
):
    """A plan of such cells, and one parameter of no cell; of the first cell one is tied."""
    specs = [ShardSpec(shape=(size,)) for cell in cells for size in cell] + [ShardSpec(shape=(5,))]
    if tied:
        specs[0] = ShardSpec(shape=(cells[0][0],), shared_over="embedding")
    keys = [number for number, cell in enumerate(cells) for _ in cell] + [None]
    rule = BucketRule.sharded(replicas)
    (plan,) = plan_buffers([(place(spec, {}), "float32") for spec in specs], rule=rule, keys=keys)
    return plan, plan_residence(plan, keys, len(cells), {GROUP: (rank, replicas)}, stage, gathers_again)


@given(sizes, st.integers(2, 5), st.sampled_from([2, 3]), st.booleans())
def test_neighbours_never_share_a_slot_and_everybody_fits(cells, replicas, stage, tied):
    """Buckets of cells that work one after the other, or with one between them, are apart; each lies inside."""
    _, residence = planned(cells, replicas, stage, tied=tied)
    slots = residence.gradient_slots
    ends = {bucket: start + bucket.size for bucket, start in slots.starts.items()}
    assert all(end <= slots.size for end in ends.values())
    for one, first in slots.cells.items():
        for other, second in slots.cells.items():
            apart = ends[one] <= slots.starts[other] or ends[other] <= slots.starts[one]
            assert apart or abs(first - second) != 1
    assert residence.parameter_slots.cells == (slots.cells if stage == 3 else {})


@given(sizes, st.integers(2, 5), st.sampled_from([2, 3]), st.booleans())
def test_each_element_is_kept_once_or_whole(cells, replicas, stage, tied):
    """The ranks' parts of a transient bucket make it up; a bucket of no cell, and a tied parameter's, each rank has."""
    plan, first = planned(cells, replicas, stage, tied=tied)
    kept = [0] * plan.size
    for rank in range(replicas):
        _, residence = planned(cells, replicas, stage, rank, tied)
        assert residence.parameters == (residence.gradients if stage == 3 else (plan.span,))
        for span in residence.gradients:
            for i in range(*span):
                kept[i] += 1
    for bucket in plan.buckets:
        assert set(kept[bucket.start : bucket.stop]) == {1 if bucket in first.gradient_slots.cells else replicas}
    whole = [e for e in plan.entries if kept[e.start] == replicas]
    assert len(whole) == 1 + tied


@pytest.mark.parametrize("stage", [0, 1])
def test_below_stage_2_nothing_is_transient(stage):
    plan, residence = planned([[64], [64], [64]], 2, stage)
    assert residence.parameters == residence.gradients == (plan.span,)
    assert not residence.gradient_slots.size and not residence.parameter_slots.size


def test_a_rank_that_shares_with_nobody_keeps_everything():
    plan, residence = planned([[64], [64], [64]], 1, 3)
    assert residence.gradients == residence.parameters == (plan.span,) and not residence.gradient_slots.size


def test_bytes_are_those_of_the_paper():
    """Cells of 1, 4 x 2 and 3 times 128 elements over 4 ranks: a quarter of them, and slots for two inner cells and the
    larger of the ends."""
    plan, residence = planned([[128], *[[256]] * 4, [384]], 4, 3)
    own, resident = (128 + 4 * 256 + 384) // 4, 128
    assert sum(span.size for span in residence.parameters) == own + resident
    assert residence.parameter_slots.size == 2 * 256 + 384
    assert sum(span.size for span in residence.owned) == plan.size // 4


def test_weights_that_are_not_gathered_again_have_a_slot_each():
    """As many elements as all cells have; gradients take turns all the same."""
    cells = [[128], *[[256]] * 4, [384]]
    residence = planned(cells, 4, 3, gathers_again=False)[1]
    slots, starts = residence.parameter_slots, residence.parameter_slots.starts
    assert slots.size == 128 + 4 * 256 + 384 == sum(bucket.size for bucket in starts)
    ends = [0, *sorted(starts[bucket] + bucket.size for bucket in starts)]
    assert sorted(starts.values()) == ends[:-1]
    assert residence.gradient_slots == planned(cells, 4, 3)[1].gradient_slots


def test_what_is_still_in_its_slot_is_not_gathered_again():
    """Six cells in slots 2 1 0 1 0 2: the last three are there when their backward comes, the first one after it."""
    visits = micro_batch_visits(6)
    assert visits == (0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0)
    slots = {cell: slot_of(cell, 6) for cell in range(6)}
    assert list(gathered(visits, slots)) == [0, 1, 2, 3, 4, 5, 2, 1, 0]
    assert list(gathered(visits * 2, slots))[9:] == [3, 4, 5, 2, 1, 0]
    assert list(gathered(visits * 2, {cell: cell for cell in range(1, 6)})) == [1, 2, 3, 4, 5]


def test_what_is_recomputed_is_visited_again():
    assert micro_batch_visits(5, [range(1, 3), range(3, 4)]) == (0, 1, 2, 3, 4, 4, 3, 3, 1, 2, 2, 1, 0)


def test_the_order_is_learned_once_and_then_followed():
    """The order of cells is learned for training and for evaluation; a cell out of order costs the prediction and
    nothing else."""
    visits = Visits()
    for kind, order in (("train", (0, 1, 2, 2, 1, 0)), ("evaluation", (0, 1, 2))):
        visits.begin(kind)
        assert [visits.enter(cell) for cell in order] == [None] * len(order)
        visits.begin(kind)
        assert [visits.enter(cell) for cell in order] == [*order[1:], None]
    visits.begin("train")
    assert [visits.enter(cell) for cell in (0, 2, 2)] == [1, None, 2]
    assert Visits().enter(3) is None
