"""Process groups: pure arithmetic, checked against Megatron's documented layout and by properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.topology import RankGrid, Topology


def test_megatrons_example_of_sixteen_ranks():
    """The grouping that Megatron's own documentation lists for tp 2, pp 4, 16 ranks."""
    grid = Topology(world_size=16, tensor_model_parallel_size=2, pipeline_model_parallel_size=4).dense
    assert grid.groups("tp").tolist() == [[i, i + 1] for i in range(0, 16, 2)]
    assert grid.groups("dp").tolist() == [[i, i + 2] for j in range(0, 16, 4) for i in (j, j + 1)]
    assert grid.groups("pp").tolist() == [[i, i + 4, i + 8, i + 12] for i in range(4)]
    assert grid.group_of("tp-pp", 3) == (2, 3, 6, 7, 10, 11, 14, 15)


sizes = st.tuples(*[st.sampled_from([1, 2, 3])] * 4)


@given(sizes, st.sampled_from(["tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-cp-dp"]))
def test_groups_of_a_kind_partition_the_world(axis_sizes, name):
    """Every rank is in exactly one group, and its place in it agrees with its coordinate."""
    tp, cp, dp, pp = axis_sizes
    topology = Topology(
        world_size=tp * cp * dp * pp,
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        pipeline_model_parallel_size=pp,
    )
    groups = topology.dense.groups(name)
    assert sorted(groups.reshape(-1).tolist()) == list(range(topology.world_size))
    if "-" not in name:
        for group in groups.tolist():
            assert [topology.dense.coordinate(name, rank) for rank in group] == list(range(len(group)))


def test_embedding_group_is_first_and_last_stage():
    """And one rank alone where there is no pipeline."""
    topology = Topology(world_size=8, tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
    assert topology.embedding_group(3) == (1, 7)
    assert topology.position_embedding_group(3) == (1,)
    assert Topology(world_size=2).embedding_group(1) == (1,)


def test_expert_groups_take_their_share_of_data_and_context_parallelism():
    """ep 4 over dp 2 x cp 2: the experts of a stage are spread over all four replicas."""
    sizes = {"tensor_model_parallel_size": 2, "context_parallel_size": 2, "expert_model_parallel_size": 4}
    topology = Topology(world_size=8, **sizes)
    assert topology.expert.group_of("ep", 1) == (1, 3, 5, 7)
    assert topology.expert.group_of("dp", 1) == (1,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology(world_size=6, tensor_model_parallel_size=4), "--tensor-model-parallel-size"),
        (lambda: Topology(world_size=4, expert_model_parallel_size=3), "--expert-model-parallel-size"),
        (lambda: RankGrid("tp-tp", {"tp": 2}), "at most once"),
        (lambda: RankGrid("tp-dp", {"pp": 2}), "no place for pp"),
        (lambda: RankGrid("tp-dp", {"tp": 2}).groups("pp"), "not an axis"),
    ],
)
def test_impossible_sizes_are_refused(make, message):
    """The message names what to change."""
    with pytest.raises(ValueError, match=message):
        make()
