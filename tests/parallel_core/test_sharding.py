"""`ShardSpec`: cuts of parameters over groups, and initial values that do not depend on them."""

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
    """(spec of a parameter cut over none, one or two groups, perhaps along one axis; the coordinates of each rank)."""
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
    """`merge` of all ranks' shards is the whole parameter, for any axes, fused parts and groups."""
    spec, ranks = cut
    whole = np.arange(np.prod(spec.shape)).reshape(spec.shape)
    shards = [(place(spec, rank), place(spec, rank).cut(whole)) for rank in ranks]
    assert all(shard.shape == part.shape and shard.size == part.size for part, shard in shards)
    assert (merge(shards) == whole).all()


@given(cut_parameters())
def test_boxes_are_disjoint_and_cover(cut):
    """The boxes of the ranks that count a parameter have each element of the whole once, and a rank's boxes fill its
    shard."""
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
    """[gate; up] of 8 rows over tp gives rank 1 rows 2, 3, 6, 7; a second cut of that axis over two replicas gives the
    second of them 6, 7."""
    spec = ShardSpec(shape=(8,), cuts=(Cut(0, parts=2), Cut(0, "dp-cp")))
    part = place(spec, {"tp": (1, 2), "dp-cp": (1, 2)})
    assert part.cut(np.arange(8)).tolist() == [6, 7]


@pytest.mark.parametrize("initial", [Normal(1.0), Constant(1.0)])
def test_units_that_ranks_do_not_divide_are_padded_at_the_end(initial):
    """A cut of 5 units over 4 ranks gives shards of one shape, filled up with zeros at the end of each fused part;
    values are the whole parameter's, and the fourth rank has zeros alone."""
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
    """5 rows over 2 ranks are 3 each, one of them padding; the second rank's over 3 replicas are a row each, the last
    one padding."""
    spec = ShardSpec(name="w", shape=(5,), cuts=(Cut(0, unit=1), Cut(0, "dp-cp")))
    parts = [place(spec, {"tp": (1, 2), "dp-cp": (rank, 3)}) for rank in range(3)]
    assert [part.cut(np.arange(5)).tolist() for part in parts] == [[3], [4], [0]]
    assert [part.padding for part in parts] == [0, 0, 1]


def test_who_counts_a_parameter():
    """`is_counted`, which makes norms count each element once: of copies the lowest rank, every rank of a cut and of an
    expert's own parameter, and not the last stage for a tied embedding."""
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
    """Each element is counted by exactly one rank of a stage in each model-parallel group, of dense and of expert
    parameters."""
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
    """Parameters of two dimensions decay and vectors do not, as in Megatron, unless the spec says otherwise."""
    assert ShardSpec(shape=(3, 2)).is_decayed and not ShardSpec(shape=(3,)).is_decayed
    assert not ShardSpec(shape=(3, 2), weight_decay=False).is_decayed


def test_swiglu_halves_are_cut_on_their_own():
    """Tensor-parallel rank r of a gated linear holds [gate_r; up_r], not a contiguous block."""
    part = place(ShardSpec(shape=(8, 1), cuts=(Cut(0, parts=2),)), {"tp": (1, 2)})
    assert part.cut(np.arange(8).reshape(8, 1)).ravel().tolist() == [2, 3, 6, 7]


@given(cut_parameters())
def test_initial_values_do_not_depend_on_the_layout(cut):
    """Initial values of a shard are that part of the whole parameter's values, for any cut."""
    spec, ranks = cut
    whole = Normal(0.02).shard(1234, place(spec, {}))
    np.testing.assert_array_equal(whole.ravel(), standard_normal(1234, "w", 0, whole.size) * np.float32(0.02))
    for rank in ranks:
        np.testing.assert_array_equal(Normal(0.02).shard(1234, place(spec, rank)), place(spec, rank).cut(whole))


def test_normal_values_are_normal_and_differ_by_seed_and_name():
    """A million initial values have a normal distribution's moments, other seeds and names are uncorrelated, and any
    run of the stream is computed alone."""
    values = standard_normal(1, "a", 0, 1_000_000)
    assert abs(values.mean()) < 4e-3 and abs(values.std() - 1) < 3e-3 and abs((values**4).mean() - 3) < 0.03
    for other in (standard_normal(2, "a", 0, 1000), standard_normal(1, "b", 0, 1000)):
        assert abs(np.corrcoef(values[:1000], other)[0, 1]) < 0.15
    np.testing.assert_array_equal(standard_normal(1, "a", 300_001, 300_010), values[300_001:300_010])


def test_constant():
    """`Constant` gives its value to each element of the shard."""
    spec = ShardSpec(name="n", shape=(3,))
    assert Constant(1.0).shard(0, place(spec, {"tp": (1, 2)})).tolist() == [1.0, 1.0, 1.0]


def test_sizes_that_do_not_divide_are_refused():
    """An axis that the group does not divide is an error with parameter and flag; an array of another shape is
    refused."""
    with pytest.raises(ValueError, match=r"w: 6 entries.*--tensor-model-parallel-size 4"):
        place(ShardSpec(name="w", shape=(6, 2), cuts=(Cut(0),)), {"tp": (0, 4)})
    with pytest.raises(ValueError, match="expected shape"):
        place(ShardSpec(name="w", shape=(6, 2)), {}).cut(np.zeros((5, 2)))
