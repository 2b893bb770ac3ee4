"""A checkpoint written at one layout is read at any other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.checkpoint.layout import overlap
from parallel_core.checkpoint.reader import CheckpointReader, Vocabulary
from parallel_core.sharding import Cut, Place, ShardSpec, merge, place
from tests.support.checkpoint_writing import save, shard

SIZES = (1, 2, 4)

specs = st.builds(
    lambda axis, parts, unit, others: ShardSpec(
        shape=(*others[:axis], 4 * parts * unit, *others[axis:]), cuts=(Cut(axis, parts=parts),)
    ),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(1, 2),
    st.lists(st.integers(1, 3), min_size=2, max_size=2),
) | st.builds(lambda shape: ShardSpec(shape=tuple(shape)), st.lists(st.integers(1, 4), max_size=3))


def place_of(spec: ShardSpec, rank: int, size: int) -> Place:
    """The part of a parameter that tensor-parallel rank `rank` of `size` has."""
    return place(spec, {"tp": (rank, size)})


def _values(spec: ShardSpec, first: int = 0) -> np.ndarray:
    """An array of the parameter's shape with the numbers from `first` on."""
    return np.arange(first, first + int(np.prod(spec.shape)), dtype=np.float32).reshape(spec.shape)


@given(specs, st.sampled_from(SIZES), st.sampled_from(SIZES))
def test_overlaps_move_every_element_to_its_place(spec, before, after):
    """Copies of all `overlap`s of the boxes of shards over one tensor-parallel size give exactly the shards over
    another."""
    whole = _values(spec)
    sources = range(before) if spec.cuts else [0]
    for rank in range(after):
        wanted = place_of(spec, rank, after)
        out = np.full(wanted.shape, -1, np.float32)
        for source in sources:
            given = place_of(spec, source, before)
            stored = given.cut(whole)
            for a in given.boxes:
                for b in wanted.boxes:
                    copy = overlap(a, b)
                    if copy is not None:
                        out[copy.target] = stored[copy.source]
        np.testing.assert_array_equal(out, wanted.cut(whole))


@settings(max_examples=25, deadline=None)
@given(st.lists(specs, min_size=2, max_size=4), st.sampled_from(SIZES), st.sampled_from(SIZES), st.integers(1, 2))
def test_files_written_at_one_layout_are_read_at_another(tmp_path_factory, cuts, before, after, stages):
    """Files written over any tensor- and pipeline-parallel sizes give each rank of another tensor-parallel size its
    shard."""
    whole = {f"layers.{i}.w": (spec.named(f"layers.{i}.w"), _values(spec, i)) for i, spec in enumerate(cuts)}
    names = list(whole)
    by_stage = [{name: whole[name] for name in names[stage::stages]} for stage in range(stages)]
    reader = CheckpointReader(save(tmp_path_factory.mktemp("save"), 1, by_stage, before))
    assert reader.damaged_files() == []
    for name, (spec, values) in whole.items():
        assert reader.problem(name, spec) is None
        for rank in range(after):
            np.testing.assert_array_equal(shard(reader, spec, rank, after), place_of(spec, rank, after).cut(values))


def test_a_replicated_tensor_is_stored_once(tmp_path):
    """A norm's weight, which every tensor-parallel rank has, is stored in the first rank's file alone."""
    spec = ShardSpec(name="norm", shape=(3,))
    reader = CheckpointReader(save(tmp_path, 1, [{"norm": (spec, np.ones(3, np.float32))}], 2))
    assert [shard.file for shard in reader.manifest.tensors["norm"].shards] == ["mp_rank_00_000.safetensors"]


def test_only_files_that_are_needed_are_read(tmp_path):
    """A rank that reads at the writer's layout opens its own file alone."""
    spec = ShardSpec(name="w", shape=(4, 6), cuts=(Cut(0),))
    path = save(tmp_path, 1, [{"w": (spec, _values(spec))}], 2)
    (path / "mp_rank_00_000.safetensors").unlink()
    np.testing.assert_array_equal(shard(CheckpointReader(path), spec, 1, 2), _values(spec)[2:])


def test_another_axis_can_be_read_than_was_written(tmp_path):
    """A parameter written cut along rows is read cut along columns, as another version may cut it."""
    rows, columns = (ShardSpec(name="w", shape=(4, 6), cuts=(Cut(axis),)) for axis in (0, 1))
    values = _values(rows)
    reader = CheckpointReader(save(tmp_path, 1, [{"w": (rows, values)}], 2))
    for rank in range(2):
        np.testing.assert_array_equal(shard(reader, columns, rank, 2), place_of(columns, rank, 2).cut(values))


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 4), (1, 1)])
def test_a_vocabulary_padded_otherwise(tmp_path, before, after):
    """A vocabulary padded for another tensor-parallel size is read: rows of ids are the stored ones, rows that only
    this padding has keep the model's values; another number of ids is refused."""
    padded = {size: 2 * size * -(-5 // (2 * size)) for size in (1, 2, 4)}
    table = {size: ShardSpec(name="table", shape=(padded[size], 3), cuts=(Cut(0),)) for size in padded}
    values = _values(table[before])
    path = save(tmp_path, 1, [{"table": (table[before], values)}], before, vocabulary=(5, padded[before]))
    reader = CheckpointReader(path, Vocabulary(5, padded[after]))
    assert reader.problem("table", table[after]) is None
    ranks = range(after)
    read = merge((place_of(table[after], rank, after), shard(reader, table[after], rank, after)) for rank in ranks)
    both = min(padded[before], padded[after])
    np.testing.assert_array_equal(read[:both], values[:both])
    assert np.isnan(read[both:]).all()
    other_tokenizer = CheckpointReader(path, Vocabulary(6, padded[after]))
    assert (other_tokenizer.problem("table", table[after]) is None) == (padded[before] == padded[after])
