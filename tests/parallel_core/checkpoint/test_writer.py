"""Division of a checkpoint's writing among ranks: each element of a parameter is written once, and each file by one
rank."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from parallel_core.checkpoint.writer import is_written, writers
from parallel_core.sharding import Cut, ShardSpec, place
from parallel_core.topology import Topology

powers = st.sampled_from([1, 2, 4])

PARAMETERS = {
    "replicated": ShardSpec(shape=(8,)),
    "cut": ShardSpec(shape=(8, 2), cuts=(Cut(0, parts=2),)),
    "all experts": ShardSpec(shape=(4, 8), cuts=(Cut(0, "ep"), Cut(1, "expert-tp")), replicas="expert-dp"),
    "router of experts": ShardSpec(shape=(8,), replicas="expert-dp"),
}
EXPERTS_OWN = ShardSpec(shape=(8,), cuts=(Cut(0, "expert-tp"),), replicas="expert-dp", distinct_over=("ep",))
TIED = ShardSpec(shape=(8,), cuts=(Cut(0),), shared_over="embedding")


@st.composite
def topologies(draw) -> Topology:
    """Legal topologies with tensor, context, pipeline and data parallelism of 1 or 2, and experts over up to 4
    ranks."""
    tensor, context, stages, replicas = (draw(powers.filter(lambda n: n < 4)) for _ in range(4))
    world = tensor * context * stages * replicas
    experts, expert_tensor = draw(powers), draw(powers)
    assume(world % (experts * expert_tensor * stages) == 0)
    return Topology(
        world_size=world,
        tensor_model_parallel_size=tensor,
        context_parallel_size=context,
        pipeline_model_parallel_size=stages,
        expert_model_parallel_size=experts,
        expert_tensor_parallel_size=expert_tensor,
    )


def times_written(topology: Topology, spec: ShardSpec, ranks: list[int]) -> np.ndarray:
    """The number of times that the given ranks, which all have the parameter, write each of its elements."""
    files, times = writers(topology), np.zeros(spec.shape, int)
    for rank in ranks:
        coordinates = topology.coordinates(rank)
        if is_written(spec, coordinates):
            assert rank in files
            for box in place(spec, coordinates).boxes:
                times[box.in_whole] += 1
    return times


@given(topologies())
def test_every_element_is_written_once(topology):
    """Each stage's ranks write each element of its parameters once, those with an expert its own parameters, those of
    the first and last stage together a tied one; no two ranks write one file."""
    assert len(set(writers(topology).values())) == len(writers(topology))
    ranks = {rank: topology.coordinates(rank) for rank in range(topology.world_size)}
    stages, experts = topology.pipeline_model_parallel_size, topology.expert_model_parallel_size
    for stage in range(stages):
        here = [rank for rank, found in ranks.items() if found["pp"][0] == stage]
        for name, spec in PARAMETERS.items():
            assert (times_written(topology, spec, here) == 1).all(), name
        for expert in range(experts):
            owners = [rank for rank in here if ranks[rank]["ep"][0] == expert]
            assert (times_written(topology, EXPERTS_OWN, owners) == 1).all()
    ends = [rank for rank, found in ranks.items() if found["pp"][0] in (0, stages - 1)]
    assert (times_written(topology, TIED, ends) == 1).all()


def test_without_experts_the_first_replica_writes_megatrons_files():
    """A dense model is written by the first data-parallel replica, in files with Megatron's names (mp_rank_TP_PP)."""
    topology = Topology(world_size=8, tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    names = ["mp_rank_00_000", "mp_rank_01_000", "mp_rank_00_001", "mp_rank_01_001"]
    assert list(writers(topology).values()) == [f"{name}.safetensors" for name in names]
    assert list(writers(topology)) == [0, 1, 4, 5]
