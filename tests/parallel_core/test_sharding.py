"""Cuts of parameters, and initial values that don't depend on them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.initial_values import Constant, Normal, standard_normal
from parallel_core.sharding import MODEL_GROUPS, Cut, ShardSpec, is_counted, merge, place
from parallel_core.topology import Topology


@st.composite
def cut_parameters(draw) -> tuple[ShardSpec, list[dict[str, tuple[int, int]]]]:
    """A parameter cut over up to two groups, perhaps along one axis, and the coordinates of all of their ranks."""
    sizes = {"ep": draw(st.sampled_from([1, 2, 3])), "expert-tp": draw(st.sampled_from([1, 2, 4]))}
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    cuts = []
    for kind in draw(st.lists(st.sampled_from(list(sizes)), unique=True, max_size=2)):
        cut = Cut(draw(st.integers(0, len(lengths) - 1)), kind, draw(st.integers(1, 3)))
        lengths[cut.axis] *= sizes[kind] * cut.parts
        cuts.append(cut)
    spec = ShardSpec(name="w", shape=tuple(lengths), cuts=tuple(cuts), replicas="expert-dp")
    ranks = product(*(range(size) for size in sizes.values()))
    return spec, [
        {kind: (rank, size) for (kind, size), rank in zip(sizes.items(), places, strict=True)} for places in ranks
    ]


@given(cut_parameters())
def test_merge_undoes_cut(cut):
    """Any axes, any numbers of fused parts, over one group, two or none."""
    spec, ranks = cut
    whole = np.arange(np.prod(spec.shape)).reshape(spec.shape)
    shards = [(place(spec, rank), place(spec, rank).cut(whole)) for rank in ranks]
    assert all(shard.shape == part.shape and shard.size == part.size for part, shard in shards)
    assert (merge(shards) == whole).all()


@given(cut_parameters())
def test_boxes_are_disjoint_and_cover(cut):
    """The ranks that count a parameter have each of its elements once, and each box fills its part of the shard."""
    spec, ranks = cut
    times = np.zeros(spec.shape, int)
    for rank in ranks:
        part = place(spec, rank)
        filled = np.zeros(part.shape, int)
        for box in part.boxes:
            filled[box.in_shard] += 1
            times[box.in_whole] += is_counted(spec, rank)
        assert (filled == 1).all()
    assert (times == 1).all()


def test_a_second_cut_of_an_axis_cuts_what_the_first_left():
    """[gate; up] over tensor parallelism, and each rank's rows over data parallelism: rows 2, 3, 6, 7, then 6, 7."""
    spec = ShardSpec(shape=(8,), cuts=(Cut(0, parts=2), Cut(0, "dp-cp")))
    part = place(spec, {"tp": (1, 2), "dp-cp": (1, 2)})
    assert part.cut(np.arange(8)).tolist() == [6, 7]


@pytest.mark.parametrize("initial", [Normal(1.0), Constant(1.0)])
def test_units_that_ranks_do_not_divide_are_padded_at_the_end(initial):
    """Two fused parts of 5 units of 2 over 4 ranks: shards of one shape, whose values are the whole parameter's, and
    zeros; the fourth rank has nothing else."""
    spec = ShardSpec(name="w", shape=(20, 3), cuts=(Cut(0, parts=2, unit=2),))
    places = [place(spec, {"tp": (rank, 4)}) for rank in range(4)]
    whole = initial.shard(0, place(spec, {}))
    assert [(one.shape, one.padding) for one in places] == [((8, 3), 0), ((8, 3), 0), ((8, 3), 12), ((8, 3), 24)]
    assert [one.filled for one in places] == [(8, 3), (8, 3), (6, 3), (8, 3)] and places[3].boxes == ()
    third = whole[[8, 9, 18, 19]]
    assert (initial.shard(0, places[2]) == np.insert(third, [2, 2, 4, 4], 0, axis=0)).all()
    assert all((initial.shard(0, one) == one.cut(whole)).all() for one in places)
    assert (merge((one, one.cut(whole)) for one in places) == whole).all()


def test_padding_is_cut_again():
    """5 rows over 2 ranks are 3, and 2 and a zero; those over 3: a row each, of which the last is padding."""
    spec = ShardSpec(name="w", shape=(5,), cuts=(Cut(0, unit=1), Cut(0, "dp-cp")))
    parts = [place(spec, {"tp": (1, 2), "dp-cp": (rank, 3)}) for rank in range(3)]
    assert [part.cut(np.arange(5)).tolist() for part in parts] == [[3], [4], [0]]
    assert [part.padding for part in parts] == [0, 0, 1]


def test_who_counts_a_parameter():
    """The lowest rank in each group of copies: not a cut, not an expert's own, not the last stage's tied embedding."""
    second = {"tp": (1, 2), "expert-tp": (1, 2), "ep": (1, 2), "embedding": (1, 2)}
    vector = ShardSpec(shape=(3,))
    assert is_counted(vector, {"tp": (0, 2)}) and not is_counted(vector, second)
    assert is_counted(replace(vector, cuts=(Cut(0),)), second)
    assert not is_counted(replace(vector, cuts=(Cut(0),), shared_over="embedding"), second)
    expert = ShardSpec(shape=(4,), cuts=(Cut(0, "expert-tp"),), replicas="expert-dp")
    assert not is_counted(expert, second) and is_counted(replace(expert, distinct_over=("ep",)), second)


@pytest.mark.parametrize("expert_tensor", [1, 2])
@pytest.mark.parametrize("experts", [1, 2])
def test_a_sum_over_the_model_has_each_element_once(experts, expert_tensor):
    """In every group that holds one replica of the model, of the dense parameters and of the experts'."""
    topology = Topology(
        world_size=8,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        expert_model_parallel_size=experts,
        expert_tensor_parallel_size=expert_tensor,
    )
    specs = [
        ShardSpec(shape=(4, 4)),
        ShardSpec(shape=(4, 4), cuts=(Cut(1),)),
        ShardSpec(shape=(4, 4), replicas="expert-dp"),
        ShardSpec(shape=(4, 4), cuts=(Cut(0, "ep"), Cut(1, "expert-tp")), replicas="expert-dp"),
    ]
    for spec in specs:
        for group in topology.groups(MODEL_GROUPS[spec.replicas]):
            times = np.zeros((2, *spec.shape), int)
            for rank in group:
                coordinates = topology.coordinates(int(rank))
                for box in place(spec, coordinates).boxes:
                    times[coordinates["pp"][0]][box.in_whole] += is_counted(spec, coordinates)
            assert (times == 1).all()


def test_weight_decay_is_said_by_the_spec():
    """Megatron's rule unless the spec says otherwise."""
    assert ShardSpec(shape=(3, 2)).is_decayed and not ShardSpec(shape=(3,)).is_decayed
    assert not ShardSpec(shape=(3, 2), weight_decay=False).is_decayed


def test_swiglu_halves_are_cut_on_their_own():
    """Rank r holds [gate_r; up_r], not a contiguous block."""
    part = place(ShardSpec(shape=(8, 1), cuts=(Cut(0, parts=2),)), {"tp": (1, 2)})
    assert part.cut(np.arange(8).reshape(8, 1)).ravel().tolist() == [2, 3, 6, 7]


@given(cut_parameters())
def test_initial_values_do_not_depend_on_the_layout(cut):
    """The shards of any cut are parts of the same array."""
    spec, ranks = cut
    whole = Normal(0.02).shard(1234, place(spec, {}))
    np.testing.assert_array_equal(whole.ravel(), standard_normal(1234, "w", 0, whole.size) * np.float32(0.02))
    for rank in ranks:
        np.testing.assert_array_equal(Normal(0.02).shard(1234, place(spec, rank)), place(spec, rank).cut(whole))


def test_normal_values_are_normal_and_differ_by_seed_and_name():
    """Moments of a million values, and no correlation between streams."""
    values = standard_normal(1, "a", 0, 1_000_000)
    assert abs(values.mean()) < 4e-3 and abs(values.std() - 1) < 3e-3 and abs((values**4).mean() - 3) < 0.03
    for other in (standard_normal(2, "a", 0, 1000), standard_normal(1, "b", 0, 1000)):
        assert abs(np.corrcoef(values[:1000], other)[0, 1]) < 0.15
    np.testing.assert_array_equal(standard_normal(1, "a", 300_001, 300_010), values[300_001:300_010])


def test_constant():
    """Norm weights and biases."""
    spec = ShardSpec(name="n", shape=(3,))
    assert Constant(1.0).shard(0, place(spec, {"tp": (1, 2)})).tolist() == [1.0, 1.0, 1.0]


def test_sizes_that_do_not_divide_are_refused():
    """The message names the parameter and the flag."""
    with pytest.raises(ValueError, match=r"w: 6 entries.*--tensor-model-parallel-size 4"):
        place(ShardSpec(name="w", shape=(6, 2), cuts=(Cut(0),)), {"tp": (0, 4)})
    with pytest.raises(ValueError, match="expected shape"):
        place(ShardSpec(name="w", shape=(6, 2)), {}).cut(np.zeros((5, 2)))
