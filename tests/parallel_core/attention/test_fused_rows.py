"""Rows of fused weights (query-key-value, gate-up): which rows belong to which group or rank, for any number of heads,
groups and ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.attention.fused_rows import GATED_PARTS, QueryKeyValueRows
from parallel_core.sharding import Cut, ShardSpec, place

sizes = st.integers(1, 4)


@given(sizes, sizes, sizes)
def test_groups_cover_the_rows_in_order(heads_per_group, groups, head_size):
    """The rows of linear_qkv are, group after group, its queries' rows, its key's and its value's, without gap or
    overlap."""
    rows = QueryKeyValueRows(heads_per_group * groups, groups, head_size)
    order = [row for group in range(groups) for part in rows.of_group(group) for row in part]
    assert order == list(range(rows.count))
    assert [len(part) for part in rows.of_group(0)] == [heads_per_group * head_size, head_size, head_size]


@given(sizes, sizes, sizes, sizes)
def test_sharing_ranks_divide_the_queries_of_their_group(own_heads, groups, sharers, head_size):
    """Each query row belongs to exactly one tensor-parallel rank where there are more ranks than key-value groups, and
    a rank has the key and value rows of its queries' group."""
    size = groups * sharers
    rows = QueryKeyValueRows(own_heads * size, groups, head_size)
    queries = []
    for rank in range(size):
        query, *key_and_value = rows.of_sharing_rank(rank, size)
        group = rows.of_group(rank // sharers)
        assert len(query) == own_heads * head_size and set(query) <= set(group[0]) and key_and_value == list(group[1:])
        queries += query
    assert queries == [row for group in range(groups) for row in rows.of_group(group)[0]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_a_gated_layer_has_gate_then_up(rank):
    """Tensor-parallel rank r of 2 has, of a gated linear with gate rows 0..3 and up rows 4..7, its half of the gate,
    then its half of up."""
    part = place(ShardSpec(shape=(8,), cuts=(Cut(0, parts=GATED_PARTS),)), {"tp": (rank, 2)})
    first = 2 * rank
    assert part.cut(np.arange(8)).tolist() == [first, first + 1, 4 + first, 5 + first]
