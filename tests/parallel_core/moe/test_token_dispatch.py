"""The plan that sends tokens to experts and back, against brute force."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.moe import token_dispatch
from parallel_core.moe.token_dispatch import Copies


@given(st.integers(1, 9), st.integers(1, 3), st.integers(3, 7), st.integers(0, 99))
def test_choices_by_expert(tokens, top, experts, seed):
    """`sorted_by_expert` lists choices (token x k + place) by expert, in the tokens' order, without dropped ones;
    padded with -1 to given counts; `of_experts` is a run of experts."""
    chosen = np.random.default_rng(seed).integers(-1, experts, (tokens, top)).astype(np.int32)
    expected = [[i for i, e in enumerate(chosen.reshape(-1)) if e == expert] for expert in range(experts)]
    found = token_dispatch.sorted_by_expert(chosen, experts)
    assert found.choices.tolist() == [i for of_expert in expected for i in of_expert]
    assert found.counts.tolist() == [len(of_expert) for of_expert in expected]
    rows = found.counts + np.arange(experts) % 3
    padded = token_dispatch.sorted_by_expert(chosen, experts, rows)
    assert padded.counts.tolist() == rows.tolist()
    wanted = [of_expert + [-1] * (count - len(of_expert)) for of_expert, count in zip(expected, rows, strict=True)]
    assert padded.choices.tolist() == [i for of_expert in wanted for i in of_expert]
    own = token_dispatch.of_experts(found, 1, 2)
    assert own.choices.tolist() == expected[1] + expected[2] and own.counts.tolist() == found.counts[1:3].tolist()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_addresses(owners, shards, experts, seed):
    """`addressed` lists, for each rank, the choices of all experts that it owns; the `shards` ranks that cut one
    owner's experts are neighbours and each get all of them."""
    chosen = np.random.default_rng(seed).integers(-1, owners * experts, (7, 2)).astype(np.int32)
    by_expert = token_dispatch.sorted_by_expert(chosen, owners * experts)
    sent = token_dispatch.addressed(by_expert, owners * shards, shards)
    rows = [
        i
        for rank in range(owners * shards)
        for expert in range(rank // shards * experts, (rank // shards + 1) * experts)
        for i in np.flatnonzero(chosen.reshape(-1) == expert)
    ]
    assert sent.choices.tolist() == rows and sent.counts.shape == (owners * shards, experts)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_what_came_by_expert(ranks, experts, seed):
    """`by_expert` reorders received rows from (rank, expert) to (expert, rank), empty runs included; `inverse` undoes
    it."""
    received = np.random.default_rng(seed).integers(0, 4, (ranks, experts))
    came = [(rank, e, i) for rank in range(ranks) for e in range(experts) for i in range(received[rank, e])]
    order = token_dispatch.by_expert(received)
    assert [came[i] for i in order] == sorted(came, key=lambda row: (row[1], row[0], row[2]))
    assert order[token_dispatch.inverse(order)].tolist() == list(range(len(came)))


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_places_are_where_the_copies_are(rows, most, seed):
    """`Copies.of(sources, ...)`: `places[row]` are the indices of all copies of that row in `sources`, filled up with
    -1."""
    generator = np.random.default_rng(seed)
    sources = np.repeat(np.arange(rows), generator.integers(0, most + 1, rows))
    sources = generator.permutation(np.concatenate([sources, [-1, -1]]))
    copies = Copies.of(sources, rows, most)
    for row, places in enumerate(copies.places):
        assert sorted(places[places >= 0]) == np.flatnonzero(sources == row).tolist()
    assert copies.of_rows(1).places.tolist() == copies.places.tolist()


def test_copies_of_rows_that_are_one():
    """`of_rows(2)` turns copies of choices 2 t and 2 t + 1 into copies of token t."""
    copies = Copies.of(np.array([3, 0, -1, 1]), 4, 1).of_rows(2)
    assert copies.sources.tolist() == [1, 0, -1, 0] and copies.places.tolist() == [[1, 3], [-1, 0]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_one_row_at_least(counts):
    """`one_row_at_least` adds a row of zeros (-1) for each expert without rows, and `undone` takes those out again."""
    filled, rows = token_dispatch.one_row_at_least(np.array(counts))
    assert rows.tolist() == [max(count, 1) for count in counts]
    of_expert = np.split(filled.sources, np.cumsum(rows)[:-1])
    assert [len(own) if own[0] >= 0 else 0 for own in of_expert] == counts
    assert filled.sources[filled.undone.sources].tolist() == list(range(sum(counts)))
    assert filled.undone.places[:, 0].tolist() == filled.sources.tolist()
