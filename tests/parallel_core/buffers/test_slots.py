"""ZeRO's stages 2 and 3 as a plan: which elements a rank keeps, in which reused slots the others lie while a cell needs
them, and when weights are gathered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.buffers.layout import BucketRule, plan_buffers
from parallel_core.buffers.slots import Visits, gathered, micro_batch_visits, plan_residence, slot_of
from parallel_core.sharding import ShardSpec, place

GROUP = "intra-dp-cp"

sizes = st.lists(st.lists(st.integers(1, 700), min_size=1, max_size=4), min_size=1, max_size=6)
"""Number of elements of each parameter, by cell."""


def planned(
    cells: list[list[int]], replicas: int, stage: int, rank: int = 0, tied: bool = False, gathers_again: bool = True
):
    """The buffer plan and the residence plan of cells of such parameters and of one parameter of 5 elements that
    belongs to no cell; with `tied` the first cell's first parameter has a copy on another stage."""
    specs = [ShardSpec(shape=(size,)) for cell in cells for size in cell] + [ShardSpec(shape=(5,))]
    if tied:
        specs[0] = ShardSpec(shape=(cells[0][0],), shared_over="embedding")
    keys = [number for number, cell in enumerate(cells) for _ in cell] + [None]
    rule = BucketRule.sharded(replicas)
    (plan,) = plan_buffers([(place(spec, {}), "float32") for spec in specs], rule=rule, keys=keys)
    return plan, plan_residence(plan, keys, len(cells), {GROUP: (rank, replicas)}, stage, gathers_again)


@given(sizes, st.integers(2, 5), st.sampled_from([2, 3]), st.booleans())
def test_neighbours_never_share_a_slot_and_everybody_fits(cells, replicas, stage, tied):
    """Buckets of cells that are computed one directly after another lie in separate memory, and each bucket lies inside
    the slots; weights have slots at stage 3 alone."""
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
    """Each element of a bucket that uses a slot is kept by exactly one replica; a bucket that belongs to no cell, or
    has a tied parameter, is kept by all. Stage 2 keeps parameters whole."""
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
    """ZeRO stages 0 and 1 keep all parameters and gradients on each rank, and have no slots."""
    plan, residence = planned([[64], [64], [64]], 2, stage)
    assert residence.parameters == residence.gradients == (plan.span,)
    assert not residence.gradient_slots.size and not residence.parameter_slots.size


def test_a_rank_that_shares_with_nobody_keeps_everything():
    """A single replica keeps all parameters and gradients at stage 3, and has no slots."""
    plan, residence = planned([[64], [64], [64]], 1, 3)
    assert residence.gradients == residence.parameters == (plan.span,) and not residence.gradient_slots.size


def test_bytes_are_those_of_the_paper():
    """Cells of 1, 2, 2, 2, 2 and 3 times 128 elements over 4 replicas at stage 3: a rank keeps a quarter of them, and
    has slots for two inner cells and the larger of the first and last."""
    plan, residence = planned([[128], *[[256]] * 4, [384]], 4, 3)
    own, resident = (128 + 4 * 256 + 384) // 4, 128
    assert sum(span.size for span in residence.parameters) == own + resident
    assert residence.parameter_slots.size == 2 * 256 + 384
    assert sum(span.size for span in residence.owned) == plan.size // 4


def test_weights_that_are_not_gathered_again_have_a_slot_each():
    """Each cell's weights have a slot of their own if the backward does not gather them again, so that slots are as
    large as all cells; gradients share slots as before."""
    cells = [[128], *[[256]] * 4, [384]]
    residence = planned(cells, 4, 3, gathers_again=False)[1]
    slots, starts = residence.parameter_slots, residence.parameter_slots.starts
    assert slots.size == 128 + 4 * 256 + 384 == sum(bucket.size for bucket in starts)
    ends = [0, *sorted(starts[bucket] + bucket.size for bucket in starts)]
    assert sorted(starts.values()) == ends[:-1]
    assert residence.gradient_slots == planned(cells, 4, 3)[1].gradient_slots


def test_what_is_still_in_its_slot_is_not_gathered_again():
    """Six cells in slots 2 1 0 1 0 2: weights of the last three are still in their slots when their backward comes, and
    are not gathered again; in the next micro-batch it is the first three."""
    visits = micro_batch_visits(6)
    assert visits == (0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0)
    slots = {cell: slot_of(cell, 6) for cell in range(6)}
    assert list(gathered(visits, slots)) == [0, 1, 2, 3, 4, 5, 2, 1, 0]
    assert list(gathered(visits * 2, slots))[9:] == [3, 4, 5, 2, 1, 0]
    assert list(gathered(visits * 2, {cell: cell for cell in range(1, 6)})) == [1, 2, 3, 4, 5]


def test_what_is_recomputed_is_visited_again():
    """The order of visits of a micro-batch's forward and backward has the second forward of a recomputed run of cells
    before their backward."""
    assert micro_batch_visits(5, [range(1, 3), range(3, 4)]) == (0, 1, 2, 3, 4, 4, 3, 3, 1, 2, 2, 1, 0)


def test_the_order_is_learned_once_and_then_followed():
    """`Visits.enter(cell)` gives the next cell, or None, by the order seen in the first pass of the same kind
    (training, evaluation); a cell out of order gives None once, and predictions go on."""
    visits = Visits()
    for kind, order in (("train", (0, 1, 2, 2, 1, 0)), ("evaluation", (0, 1, 2))):
        visits.begin(kind)
        assert [visits.enter(cell) for cell in order] == [None] * len(order)
        visits.begin(kind)
        assert [visits.enter(cell) for cell in order] == [*order[1:], None]
    visits.begin("train")
    assert [visits.enter(cell) for cell in (0, 2, 2)] == [1, None, 2]
    assert Visits().enter(3) is None
