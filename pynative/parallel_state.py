"""Megatron's getters over the topology: which groups this process is in.

The one module-level state of the package, because Megatron's users expect it: `initialize_model_parallel` fills it,
`destroy_model_parallel` empties it, everything else only reads.
"""

from dataclasses import dataclass, field

from parallel_core.topology import Topology
from pynative.collectives import Backend, Group, connect


@dataclass
class _State:
    """What one process knows of the job."""

    backend: Backend
    topology: Topology
    groups: dict[tuple[str, tuple[int, ...]], Group] = field(default_factory=dict)
    virtual_size: int | None = None
    virtual_rank: int = 0

    def group(self, name: str, ranks: tuple[int, ...]) -> Group:
        """The group of these ranks, connected on first use."""
        key = (name, ranks)
        if key not in self.groups:
            self.groups[key] = self.backend.group(ranks, name)
        return self.groups[key]


_state: _State | None = None


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    context_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
    order: str = "tp-cp-ep-dp-pp",
    *,
    backend: Backend | None = None,
) -> None:
    """Lay the rank grid over the processes of `backend` (by default: those that the launcher started)."""
    global _state
    if _state is not None:
        raise RuntimeError("model parallelism is already initialised; call destroy_model_parallel() first")
    backend = connect() if backend is None else backend
    topology = Topology(
        world_size=backend.world_size,
        tensor_model_parallel_size=tensor_model_parallel_size,
        context_parallel_size=context_parallel_size,
        expert_model_parallel_size=expert_model_parallel_size,
        pipeline_model_parallel_size=pipeline_model_parallel_size,
        order=order,
    )
    _state = _State(backend, topology, virtual_size=virtual_pipeline_model_parallel_size)


def model_parallel_is_initialized() -> bool:
    """Whether the groups exist."""
    return _state is not None


def destroy_model_parallel() -> None:
    """Forget the groups; the backend stays open for whoever made it."""
    global _state
    _state = None


def _current() -> _State:
    if _state is None:
        raise RuntimeError("model parallelism is not initialised: call set_parallel_context first")
    return _state


def _dense(name: str) -> Group:
    state = _current()
    return state.group(name, state.topology.dense.group_of(name, state.backend.rank))


def _expert(name: str) -> Group:
    state = _current()
    return state.group(f"expert-{name}", state.topology.expert.group_of(name, state.backend.rank))


def get_backend() -> Backend:
    """The connection to the other processes."""
    return _current().backend


def get_topology() -> Topology:
    """The rank grid."""
    return _current().topology


def get_global_rank() -> int:
    """This process among all."""
    return _current().backend.rank


def get_world_group() -> Group:
    """All processes."""
    return _current().backend.world


def get_tensor_model_parallel_group() -> Group:
    """Ranks that hold the shards of the same layers."""
    return _dense("tp")


def get_tensor_model_parallel_world_size() -> int:
    """How many ranks share a layer."""
    return _current().topology.tensor_model_parallel_size


def get_tensor_model_parallel_rank() -> int:
    """This rank's place among those that share its layers."""
    return _dense("tp").rank


def get_pipeline_model_parallel_group() -> Group:
    """The stages of one pipeline, first to last."""
    return _dense("pp")


def get_pipeline_model_parallel_world_size() -> int:
    """How many stages."""
    return _current().topology.pipeline_model_parallel_size


def get_pipeline_model_parallel_rank() -> int:
    """This rank's stage."""
    return _dense("pp").rank


def get_virtual_pipeline_model_parallel_world_size() -> int | None:
    """How many model chunks each stage holds; None without --virtual-pipeline-model-parallel-size."""
    return _current().virtual_size


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    """The chunk that is being built or run; None without virtual stages."""
    state = _current()
    return None if state.virtual_size is None else state.virtual_rank


def set_virtual_pipeline_model_parallel_rank(rank: int) -> None:
    """Say which of the stage's chunks is being built or run."""
    state = _current()
    assert 0 <= rank < (state.virtual_size or 1), f"chunk {rank} of {state.virtual_size}"
    state.virtual_rank = rank


def is_pipeline_first_stage(ignore_virtual: bool = False) -> bool:
    """Whether the chunk at hand (or, with ignore_virtual, any chunk of this rank) holds the embedding."""
    is_first_chunk = ignore_virtual or _current().virtual_rank == 0
    return is_first_chunk and get_pipeline_model_parallel_rank() == 0


def is_pipeline_last_stage(ignore_virtual: bool = False) -> bool:
    """Whether the chunk at hand (or, with ignore_virtual, any chunk of this rank) computes the loss."""
    state = _current()
    is_last_chunk = ignore_virtual or state.virtual_rank == (state.virtual_size or 1) - 1
    return is_last_chunk and get_pipeline_model_parallel_rank() == get_pipeline_model_parallel_world_size() - 1


def get_data_parallel_group(with_context_parallel: bool = False) -> Group:
    """Ranks that hold the same parameters and see other samples (or, with context parallelism, pieces of them)."""
    return _dense("dp-cp" if with_context_parallel else "dp")


def get_data_parallel_world_size(with_context_parallel: bool = False) -> int:
    """How many replicas."""
    return get_data_parallel_group(with_context_parallel).size


def get_data_parallel_rank(with_context_parallel: bool = False) -> int:
    """Which replica this is."""
    return get_data_parallel_group(with_context_parallel).rank


def get_context_parallel_group() -> Group:
    """Ranks that share a sequence."""
    return _dense("cp")


def get_context_parallel_world_size() -> int:
    """How many ranks share a sequence."""
    return _current().topology.context_parallel_size


def get_context_parallel_rank() -> int:
    """Which piece of the sequence is here."""
    return _dense("cp").rank


def get_model_parallel_group() -> Group:
    """All ranks that together hold one copy of the parameters: tensor x pipeline."""
    return _dense("tp-pp")


def get_tensor_and_data_parallel_group(with_context_parallel: bool = False) -> Group:
    """The ranks of one stage."""
    return _dense("tp-dp-cp" if with_context_parallel else "tp-dp")


def get_tensor_and_context_parallel_group() -> Group:
    """Ranks that share a sequence or a layer."""
    return _dense("tp-cp")


def get_expert_model_parallel_group() -> Group:
    """Ranks that hold different experts of the same layer."""
    return _expert("ep")


def get_expert_model_parallel_world_size() -> int:
    """Over how many ranks the experts are spread."""
    return _current().topology.expert_model_parallel_size


def get_expert_model_parallel_rank() -> int:
    """Which share of the experts is here."""
    return _expert("ep").rank


def get_data_modulo_expert_parallel_group() -> Group:
    """Ranks that hold the same experts and see other samples."""
    return _expert("dp")


def get_embedding_group() -> Group:
    """First and last stage of this rank's pipeline, for tied embeddings; members only."""
    state = _current()
    return state.group("embedding", state.topology.embedding_group(state.backend.rank))


def is_rank_in_embedding_group() -> bool:
    """Whether this rank holds the embedding or its tied copy."""
    state = _current()
    return state.backend.rank in state.topology.embedding_group(state.backend.rank)
