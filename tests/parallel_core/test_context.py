"""The layout of a sequence over context-parallel ranks, and which blocks of scores a ring computes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.context import HYBRID, RING, ULYSSES, ContextLayout, SequenceLayout, as_array, cut, ring_block

layouts = st.builds(ContextLayout, ulysses=st.integers(1, 5), ring=st.integers(1, 6))


def test_one_rank_has_no_blocks():
    """A group of one rank exchanges no heads, whatever --ulysses-degree-in-cp says."""
    assert ContextLayout.of(1, HYBRID, 2) == ContextLayout()


def expand(ranges) -> list[int]:
    """The positions of all ranges, in order."""
    return [position for run in ranges for position in run]


@given(layouts, st.integers(1, 4))
def test_every_position_is_on_one_rank_and_comes_back(layout, scale):
    """Shards of a sequence are equally long and have each position once, and `to_whole` restores the order of the
    concatenated shards."""
    length = 2 * layout.size * scale
    positions = [expand(layout.positions(length, rank)) for rank in range(layout.size)]
    assert {len(shard) for shard in positions} == {length // layout.size}
    assert sorted(position for shard in positions for position in shard) == list(range(length))
    whole = np.random.default_rng(0).random((3, length))
    shards = np.concatenate([whole[:, shard] for shard in positions], axis=1)
    np.testing.assert_array_equal(shards, whole[:, layout.order(length)])
    np.testing.assert_array_equal(layout.to_whole(shards, axis=1), whole)


@given(layouts, st.integers(1, 4), st.integers(1, 3))
def test_sequence_parallelism_cuts_the_context_parallel_shards_again(context, tensor, scale):
    """The shards of the tensor-parallel ranks, in order, are the context-parallel rank's shard; after a gather each
    rank has the whole of it."""
    layout, length = SequenceLayout(context, tensor), 2 * context.size * tensor * scale
    local = layout.local_length(length)
    for rank in range(context.size):
        whole = context.positions(length, rank)
        shards = [layout.positions(local, rank, place) for place in range(tensor)]
        assert [len(as_array(shard)) for shard in shards] == [local] * tensor
        assert [position for shard in shards for position in expand(shard)] == expand(whole)
        assert all(layout.gathered.positions(local * tensor, rank, place) == whole for place in range(tensor))


@given(layouts, st.integers(1, 4))
def test_a_block_of_neighbours_has_the_ring_members_shard_in_order(layout, scale):
    """The shards of a Ulysses group, concatenated, are its ring member's positions in order, so that the all-to-all
    needs no reordering."""
    length = 2 * layout.size * scale
    for place in range(layout.ring):
        block = range(place * layout.ulysses, (place + 1) * layout.ulysses)
        together = [position for rank in block for position in expand(layout.positions(length, rank))]
        assert together == expand(layout.ring_positions(length, place))


def test_the_three_algorithms_by_hand():
    """Positions of 16 over four ranks for ring (zigzag; also the default), Ulysses, and hybrid with degree 2."""

    def local(algorithm, degree=None):
        return [layout_of(algorithm, degree).positions(16, rank) for rank in range(4)]

    def layout_of(algorithm, degree):
        return ContextLayout.of(4, algorithm, degree)

    ring = [(range(0, 2), range(14, 16)), (range(2, 4), range(12, 14)), (range(4, 6), range(10, 12)), (range(6, 10),)]
    assert local(RING) == local(None) == ring
    assert local(ULYSSES) == [(range(start, start + 4),) for start in (0, 4, 8, 12)]
    assert local(HYBRID, 2) == [(range(0, 4),), (range(12, 16),), (range(4, 8),), (range(8, 12),)]


def test_an_odd_sequence_needs_no_ring():
    """Ulysses alone cuts a sequence of 9 over 3 ranks, as it needs no two chunks for each rank."""
    assert ContextLayout.of(3, ULYSSES).positions(9, 1) == (range(3, 6),)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 20), st.integers(0, 20))
def test_cut_is_slicing(lengths, start, stop):
    """`cut(ranges, start, stop)` has the positions of the list's slice."""
    starts = np.cumsum([0, *lengths]) + 10 * np.arange(len(lengths) + 1)
    ranges = [range(first, first + length) for first, length in zip(starts, lengths, strict=False)]
    assert expand(cut(ranges, start, stop)) == expand(ranges)[start:stop]


@pytest.mark.parametrize("ring", range(2, 9))
def test_a_causal_ring_computes_every_visible_score_once_and_balanced(ring):
    """`ring_block` computes exactly the visible scores of each pair of ring members, and as many chunks for each member
    in every step."""
    layout, length = ContextLayout(ring=ring), 4 * ring
    positions = [np.array(expand(layout.ring_positions(length, place))) for place in range(ring)]
    for place in range(ring):
        for source in range(ring):
            block = ring_block(place, source)
            computed = np.zeros((4, 4), bool)
            computed[4 - 2 * block.query_chunks :, : 2 * block.key_chunks] = True
            if block.causal:
                computed &= np.tri(4, dtype=bool)
            visible = positions[place][:, None] >= positions[source][None, :]
            np.testing.assert_array_equal(computed, visible)
            assert block.query_chunks * block.key_chunks == (4 if source == place else 2)


def test_with_a_mask_every_score_is_computed():
    """A ring with a dense attention mask computes all blocks: masked scores are -10000, not minus infinity, so none may
    be left out."""
    assert {ring_block(place, source, causal=False) for place in range(3) for source in range(3)} == {(2, 2, False)}
