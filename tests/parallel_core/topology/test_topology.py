"""Process groups of a topology: against Megatron's documented layouts, written out, and by properties of drawn ones."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.topology import KINDS, RankGrid, Topology
from parallel_core.topology.command import main
from tests.support.processor_time import command_seconds

MEGATRONS_EXAMPLE = Topology(world_size=16, tensor_model_parallel_size=2, pipeline_model_parallel_size=4)
"""The example in the comment of Megatron's `initialize_model_parallel`: tp 2, pp 4, 16 ranks."""


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("dp", [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]),
        ("tp", [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
        ("pp", [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]),
        ("tp-pp", [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]),
        ("embedding", [[0, 12], [1, 13], [2, 14], [3, 15]]),
        ("position-embedding", [[0], [1], [2], [3]]),
    ],
)
def test_megatrons_example_of_sixteen_ranks(kind, groups):
    """Groups of each kind, also those of tied and position embeddings, equal the ones that Megatron's comment lists."""
    assert MEGATRONS_EXAMPLE.groups(kind).tolist() == groups


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("tp", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("pp", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("dp", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("tp-pp", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("embedding", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ],
)
def test_stages_before_data_parallel_copies(kind, groups):
    """--use-tp-pp-dp-mapping: consecutive blocks of tp ranks are pipeline stages, and data-parallel replicas are
    furthest apart."""
    topology = Topology(
        world_size=8, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, order="tp-cp-ep-pp-dp"
    )
    assert topology.groups(kind).tolist() == groups


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("cp", [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]),
        ("cp-ulysses", [[0, 2], [4, 6], [1, 3], [5, 7], [8, 10], [12, 14], [9, 11], [13, 15]]),
        ("cp-ring", [[0, 4], [2, 6], [1, 5], [3, 7], [8, 12], [10, 14], [9, 13], [11, 15]]),
        ("dp-cp", [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]),
        ("tp-cp", [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]),
    ],
)
def test_hybrid_context_parallelism(kind, groups):
    """tp 2, cp 4 (Ulysses degree 2), dp 2: two neighbouring context-parallel ranks exchange heads, and rings connect
    the blocks."""
    topology = Topology(
        world_size=16,
        tensor_model_parallel_size=2,
        context_parallel_size=4,
        context_parallel_algo="hybrid_cp_algo",
        ulysses_degree_in_cp=2,
    )
    assert topology.groups(kind).tolist() == groups


def test_the_pure_algorithms_are_the_ends_of_the_hybrid_one():
    """The ring alone leaves a rank by itself in cp-ulysses; Ulysses alone leaves it by itself in cp-ring."""
    ring = Topology(world_size=4, context_parallel_size=4)
    ulysses = Topology(world_size=4, context_parallel_size=4, context_parallel_algo="ulysses_cp_algo")
    assert ring.group("cp-ring", 1) == ulysses.group("cp-ulysses", 1) == (0, 1, 2, 3)
    assert ring.group("cp-ulysses", 1) == ulysses.group("cp-ring", 1) == (1,)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("ep", [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]),
        ("expert-dp", [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]),
        ("tp-ep", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        ("tp-ep-pp", [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]),
    ],
)
def test_expert_groups(kind, groups):
    """tp 2, cp 2, dp 2, pp 2, ep 2: experts of a stage are divided over its context- and data-parallel ranks."""
    topology = Topology(
        world_size=16,
        tensor_model_parallel_size=2,
        context_parallel_size=2,
        pipeline_model_parallel_size=2,
        expert_model_parallel_size=2,
    )
    assert topology.groups(kind).tolist() == groups


def test_experts_may_be_cut_over_fewer_ranks_than_the_other_layers():
    """--expert-tensor-parallel-size 1 beside tp 4: each rank holds whole experts, and ep has the four ranks that cut
    the other layers."""
    topology = Topology(
        world_size=8, tensor_model_parallel_size=4, expert_model_parallel_size=4, expert_tensor_parallel_size=1
    )
    assert topology.groups("expert-tp").tolist() == [[rank] for rank in range(8)]
    assert topology.groups("ep").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert topology.groups("expert-dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@st.composite
def topologies(draw) -> Topology:
    """Drawn legal topologies of up to 3 ranks on an axis, in either order of axes, with experts over a divisor of the
    context- and data-parallel ranks."""
    tp, cp, dp, pp = (draw(st.sampled_from([1, 2, 3])) for _ in range(4))
    order = draw(st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]))
    experts = draw(st.sampled_from([n for n in range(1, cp * dp + 1) if cp * dp % n == 0]))
    if order.endswith("dp") and pp > 1:
        experts = cp
    degree = draw(st.sampled_from([n for n in range(1, cp + 1) if cp % n == 0]))
    return Topology(
        world_size=tp * cp * dp * pp,
        tensor_model_parallel_size=tp,
        context_parallel_size=cp,
        pipeline_model_parallel_size=pp,
        expert_model_parallel_size=experts,
        context_parallel_algo="hybrid_cp_algo",
        ulysses_degree_in_cp=degree,
        order=order,
    )


PARTITIONS = [kind for kind in KINDS if "embedding" not in kind]


@given(topologies(), st.sampled_from(PARTITIONS))
def test_groups_of_a_kind_partition_the_world(topology, kind):
    """Every rank is in exactly one group of each kind, groups are ascending, and `group(kind, rank)` is that group."""
    groups = topology.groups(kind)
    assert sorted(groups.reshape(-1).tolist()) == list(range(topology.world_size))
    for group in groups.tolist():
        assert group == sorted(group)
        assert all(topology.group(kind, rank) == tuple(group) for rank in group)


@given(topologies())
def test_ranks_of_a_group_stand_at_their_coordinate(topology):
    """The place of a rank in a group along one axis (tp, cp, dp, pp) is its coordinate on that axis."""
    for axis in ("tp", "cp", "dp", "pp"):
        for group in topology.groups(axis).tolist():
            assert [topology.dense.coordinate(axis, rank) for rank in group] == list(range(len(group)))


COMPLEMENTS = [
    ("tp-pp", "dp-cp"),
    ("tp-cp", "dp"),
    ("tp-dp-cp", "pp"),
    ("cp-ulysses", "cp-ring"),
    ("tp-ep-pp", "expert-dp"),
]


@given(topologies(), st.sampled_from([*COMPLEMENTS, ("tp", "dp"), ("tp", "pp"), ("ep", "expert-dp"), ("cp", "dp")]))
def test_groups_of_independent_kinds_meet_in_one_rank(topology, kinds):
    """Groups of two kinds without a common axis share at most one rank."""
    one, other = (topology.groups(kind).tolist() for kind in kinds)
    assert all(len(set(a) & set(b)) <= 1 for a in one for b in other)


@given(topologies(), st.sampled_from(COMPLEMENTS))
def test_complements_cover_the_world(topology, kinds):
    """The sizes of two kinds that together have all axes multiply to the world size (cp-ulysses and cp-ring to the
    context-parallel size, tp-cp and dp to a stage)."""
    one, other = (topology.groups(kind).shape[1] for kind in kinds)
    whole = {
        "cp-ulysses": topology.context_parallel_size,
        "tp-cp": topology.world_size // topology.pipeline_model_parallel_size,
    }
    assert one * other == whole.get(kinds[0], topology.world_size)


@given(topologies())
def test_a_model_is_spread_over_a_model_parallel_group(topology):
    """Each tp group lies within a tp-pp group, and the pipelines of the experts are those of the dense layers."""
    model_groups = {frozenset(group) for group in topology.groups("tp-pp").tolist()}
    for group in topology.groups("tp").tolist():
        assert any(set(group) <= whole for whole in model_groups)
    np.testing.assert_array_equal(topology.dense.groups("pp"), topology.expert.groups("pp"))


@given(topologies())
def test_embeddings_are_on_the_ends_of_each_pipeline(topology):
    """The embedding group of each pipeline has its first and last stage, the position-embedding group its first."""
    last = topology.pipeline_model_parallel_size - 1
    for rank in range(topology.world_size):
        stage = topology.dense.coordinate("pp", rank)
        assert topology.is_member("embedding", rank) == (stage in (0, last))
        assert topology.is_member("position-embedding", rank) == (stage == 0)
    assert len(topology.groups("embedding")) == len(topology.groups("pp"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Topology(world_size=6, tensor_model_parallel_size=4),
            "size 4.*divide the 6 .*start a multiple of 4",
        ),
        (lambda: Topology(world_size=4, context_parallel_size=0), "--context-parallel-size 0: must be at least 1"),
        (
            lambda: Topology(world_size=4, tensor_model_parallel_size="2"),
            "size '2': must be at least 1, a whole number",
        ),
        (lambda: Topology(world_size=4, tensor_model_parallel_size=None), "--tensor-model-parallel-size None: must"),
        (lambda: Topology(world_size=4, context_parallel_algo="spiral_cp_algo"), "spiral_cp_algo: must be one"),
        (
            lambda: Topology(world_size=6, num_distributed_optimizer_instances=4),
            "--num-distributed-optimizer-instances 4: must divide the 6 ranks",
        ),
        (lambda: Topology(world_size=4, expert_model_parallel_size=3), "--expert-model-parallel-size 3.*divide"),
        (
            lambda: Topology(world_size=4, context_parallel_size=4, context_parallel_algo="hybrid_cp_algo"),
            "needs --ulysses-degree-in-cp",
        ),
        (
            lambda: Topology(
                world_size=4, context_parallel_size=4, context_parallel_algo="hybrid_cp_algo", ulysses_degree_in_cp=3
            ),
            "--ulysses-degree-in-cp 3: must divide --context-parallel-size 4",
        ),
        (
            lambda: Topology(
                world_size=8, pipeline_model_parallel_size=2, expert_model_parallel_size=2, order="tp-cp-ep-pp-dp"
            ),
            "--use-tp-pp-dp-mapping",
        ),
        (lambda: RankGrid("tp-tp", {"tp": 2}), "at most once"),
        (lambda: RankGrid("tp-dp", {"pp": 2}), "no place for pp"),
        (lambda: RankGrid("tp-dp", {"tp": 2}).groups("pp"), "not an axis"),
    ],
)
def test_impossible_sizes_are_refused(make, message):
    """Sizes that are no positive whole numbers or do not divide, and an unknown context-parallel algorithm, are an
    error that says what to change."""
    with pytest.raises(ValueError, match=message):
        make()


def test_instances_of_the_distributed_optimizer_are_runs_of_the_replicas():
    """--num-distributed-optimizer-instances 2 divides the replicas into two runs (intra) and joins equal places of them
    (inter), as in Megatron; with one instance intra-dp-cp is dp-cp."""
    sizes = {"world_size": 8, "tensor_model_parallel_size": 2}
    twice = Topology(**sizes, num_distributed_optimizer_instances=2)
    assert twice.groups("intra-dp-cp").tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert twice.groups("inter-dp-cp").tolist() == [[0, 4], [2, 6], [1, 5], [3, 7]]
    np.testing.assert_array_equal(Topology(**sizes).groups("intra-dp-cp"), Topology(**sizes).groups("dp-cp"))


LARGE = "--world-size 10240 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --context-parallel-size 4"


@pytest.mark.slow
def test_any_rank_of_ten_thousand_in_under_a_second():
    """The command prints the groups of a rank of 10,240, of the right sizes and with the rank in each, in under a
    second with the interpreter's start."""
    command = [sys.executable, "-m", "parallel_core.topology", *LARGE.split(), "--rank", "4711", "--json"]
    seconds, printed = command_seconds(command)
    groups = json.loads(printed)
    assert all(4711 in ranks for ranks in groups.values())
    assert {kind: len(groups[kind]) for kind in ("tp", "cp", "dp", "pp")} == {"tp": 8, "cp": 4, "dp": 20, "pp": 16}
    assert seconds < 1.0


def test_the_command_shows_ranks_and_counts(capsys):
    """The command prints, with --rank, that rank's groups, else each kind's number of groups, ranks of a group and the
    first one."""
    assert main(["--world-size", "4", "--tensor-model-parallel-size", "2", "--rank", "2"]) == 0
    lines = {line.split()[0]: line.split()[-2:] for line in capsys.readouterr().out.splitlines()}
    assert lines["tp"] == ["2", "3"] and lines["dp"] == ["0", "2"]
    assert main(["--world-size", "4", "--tensor-model-parallel-size", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tp"] == {"groups": 2, "ranks": 2, "first": [0, 1]}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--world-size 10 --tensor-model-parallel-size 4", "divide the 10 processes"),
        ("--world-size 4 --rank 4", "--rank 4"),
        (
            "--world-size 4 --context-parallel-size 4 --ulysses-degree-in-cp 2",
            "hybrid_cp_algo or leave this out",
        ),
    ],
)
def test_the_command_refuses_in_a_line(flags, message, capsys):
    """Wrong sizes or a rank outside the world are one error line, exit code 2."""
    assert main(flags.split()) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ") and message in complaint and "Traceback" not in complaint
