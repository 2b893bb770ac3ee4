"""Getters over the topology, most of them Megatron's: which groups this process is in.

The state is the module's, because Megatron's users expect it: the two `initialize_...` functions fill it, the `set_...`
functions change the virtual pipeline, `destroy_model_parallel` empties it, the others read. The virtual pipeline rank
is the chunk of `step_position`. `parallel_core.topology.KINDS` explains the kinds of groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from parallel_core.config import AllConfig, ParallelConfig
from parallel_core.schedules.actions import Placement
from parallel_core.sharding import Coordinates
from parallel_core.system.environment import number_of
from parallel_core.topology import KINDS, Topology
from pynative.collectives import Backend, Group, connect
from pynative.step_position import StepPosition, get_step_position, set_step_position


@dataclass
class _State:
    """The topology, connection and configuration of the job, as one process knows them."""

    backend: Backend
    topology: Topology
    virtual_size: int | None = None
    folded: bool = False
    """Whether the pipeline is folded: every other chunk goes through the stages backwards (`schedules.Placement`)."""
    config: AllConfig | None = None
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def coordinates(self) -> Coordinates:
        """(This rank's index in the group, the group's size) by kind, for each group that this process is in."""
        return self.topology.coordinates(self.backend.rank)

    def ranks_of(self, kind: str) -> tuple[int, ...]:
        """Global ranks of this process's group of a kind, in group order."""
        if kind not in self.ranks:
            self.ranks[kind] = self.topology.group(kind, self.backend.rank)
        return self.ranks[kind]


_state: _State | None = None


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    pipeline_model_parallel_split_rank: int | None = None,
    context_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
    order: str = "tp-cp-ep-dp-pp",
    communicator_config_path: str | None = None,
    *,
    expert_tensor_parallel_size: int | None = None,
    context_parallel_algo: str | None = None,
    ulysses_degree_in_cp: int | None = None,
    num_distributed_optimizer_instances: int = 1,
    backend: Backend | None = None,
) -> None:
    """Lay the rank grid over the processes of `backend` (by default: those that the launcher started), all of which
    call this. Raises RuntimeError if it is laid already, ValueError for sizes or an order that do not fit, or if
    `pipeline_model_parallel_split_rank` or `communicator_config_path`, which are Megatron's, is not None."""
    _check_begin(virtual_pipeline_model_parallel_size, pipeline_model_parallel_size)
    if (pipeline_model_parallel_split_rank, communicator_config_path) != (None, None):
        unused = f"{pipeline_model_parallel_split_rank=}, {communicator_config_path=}"
        raise ValueError(f"initialize_model_parallel: {unused}: only None is available; leave them out")
    topology = Topology(
        world_size=number_of("RANK_SIZE", default=1) if backend is None else backend.world_size,
        tensor_model_parallel_size=tensor_model_parallel_size,
        context_parallel_size=context_parallel_size,
        expert_model_parallel_size=expert_model_parallel_size,
        pipeline_model_parallel_size=pipeline_model_parallel_size,
        expert_tensor_parallel_size=expert_tensor_parallel_size,
        context_parallel_algo=context_parallel_algo,
        ulysses_degree_in_cp=ulysses_degree_in_cp,
        num_distributed_optimizer_instances=num_distributed_optimizer_instances,
        order=order,
    )
    _begin(connect() if backend is None else backend, topology, virtual_pipeline_model_parallel_size)


def _begin(backend: Backend, topology: Topology, virtual_size: int | None) -> None:
    global _state  # set last, so that sizes that do not fit leave nothing behind
    state = _State(backend, topology, virtual_size=virtual_size)
    backend.prepare({kind: state.ranks_of(kind) for kind in state.coordinates})
    set_step_position(StepPosition())
    _state = state


def _check_begin(size: int | None, stages: int) -> None:
    if _state is not None:
        raise RuntimeError("model parallelism is already initialised; call destroy_model_parallel() first")
    flag = f"--virtual-pipeline-model-parallel-size {size}"
    if size is not None and size < 1:
        raise ValueError(f"{flag}: must be at least 1; change it")
    if size is not None and size > 1 and stages == 1:
        raise ValueError(f"{flag}: needs 2 or more stages, not --pipeline-model-parallel-size 1; change one of them")


def initialize_from_config(config: ParallelConfig, backend: Backend) -> None:
    """Initialise the groups as `initialize_model_parallel` does, with sizes and rank order of a ParallelConfig; if that
    is a section of an AllConfig (`all_config`), keep the AllConfig for `get_config`."""
    virtual_size = config.virtual_pipeline_model_parallel_size
    _check_begin(virtual_size, config.pipeline_model_parallel_size)
    _begin(backend, Topology.of(config, world_size=backend.world_size, order=config.rank_order), virtual_size)
    _current().config, _current().folded = config.all_config, config.placement.folded


def model_parallel_is_initialized() -> bool:
    """Whether the groups are laid: they were initialised, and `destroy_model_parallel` was not called since."""
    return _state is not None


def destroy_model_parallel() -> None:
    """Forget the groups; the backend is not closed."""
    global _state
    _state = None


def _current() -> _State:
    if _state is None:
        raise RuntimeError("model parallelism is not initialised: call set_parallel_context first")
    return _state


def get_backend() -> Backend:
    """The connection to the other processes, which makes groups. Raises RuntimeError before initialisation."""
    return _current().backend


def get_config() -> AllConfig:
    """The AllConfig that the job was initialised with. RuntimeError if there is none, and before initialisation."""
    config = find_config()
    if config is None:
        raise RuntimeError("no configuration is known: call set_parallel_context(config.parallel_config), or pass one")
    return config


def find_config() -> AllConfig | None:
    """The AllConfig that the job was initialised with; None if there was none, as after `initialize_model_parallel`.
    Raises RuntimeError before initialisation."""
    return _current().config


def get_topology() -> Topology:
    """The topology of the whole job: its sizes and process groups."""
    return _current().topology


def get_coordinates() -> Coordinates:
    """(This rank's index in the group, the group's size) by kind, for every kind of group that this rank is in."""
    return _current().coordinates


def get_group(kind: str) -> Group:
    """This process's group of one of `topology.KINDS`. Raises ValueError if it is in no such group."""
    state = _current()
    return state.backend.group(state.ranks_of(kind), kind)


def get_global_rank() -> int:
    """This process's rank among all processes of the job."""
    return _current().backend.rank


def get_world_group() -> Group:
    """The group of all processes of the job."""
    return _current().backend.world


# One table: a group of this process, how many ranks it has, which of them this one is ---------------------------------

T = TypeVar("T")


def _getter(read: Callable[[str], T], what: str, kind: str, wider: dict[str, str]) -> Callable[..., T]:
    """A getter of `kind`'s group: it returns `read(kind)`, or `read` of the kind that `wider` has for a flag that is
    set. what: the first words of its docstring, which says what it returns."""

    def get(*values: bool, **flags: bool) -> T:
        asked = dict(zip(wider, values, strict=False)) | flags
        if len(values) > len(wider) or not asked.keys() <= wider.keys():
            raise TypeError(f"a getter of the {kind} group takes {', '.join(wider) or 'no argument'}")
        return read(next((wider[flag] for flag, is_set in asked.items() if is_set), kind))

    get.__doc__ = f"{what} of {KINDS[kind].meaning}."
    return get


def _ranks(kind: str) -> tuple[int, ...]:
    return _current().ranks_of(kind)


def _group_of(kind: str, **wider: str) -> Callable[..., Group]:
    return _getter(get_group, "The group, connected on first use,", kind, wider)


def _size_of(kind: str, **wider: str) -> Callable[..., int]:
    return _getter(lambda kind: len(_ranks(kind)), "Number of ranks", kind, wider)


def _rank_of(kind: str, **wider: str) -> Callable[..., int]:
    return _getter(
        lambda kind: _ranks(kind).index(_current().backend.rank), "This rank's place in the group", kind, wider
    )


def _ranks_of(kind: str, **wider: str) -> Callable[..., tuple[int, ...]]:
    return _getter(_ranks, "Global ranks of the group", kind, wider)


def _source_of(kind: str, **wider: str) -> Callable[..., int]:
    return _getter(lambda kind: _ranks(kind)[0], "Global rank of the first member", kind, wider)


def _is_member_of(kind: str) -> Callable[..., bool]:
    return _getter(lambda kind: _current().topology.is_member(kind, _current().backend.rank), "Is it one", kind, {})


get_tensor_model_parallel_group = _group_of("tp")
get_tensor_model_parallel_world_size = _size_of("tp")
get_tensor_model_parallel_rank = _rank_of("tp")
get_tensor_model_parallel_src_rank = _source_of("tp")

get_pipeline_model_parallel_group = _group_of("pp")
get_pipeline_model_parallel_world_size = _size_of("pp")
get_pipeline_model_parallel_rank = _rank_of("pp")

get_data_parallel_group = _group_of("dp", with_context_parallel="dp-cp")
get_data_parallel_world_size = _size_of("dp", with_context_parallel="dp-cp")
get_data_parallel_rank = _rank_of("dp", with_context_parallel="dp-cp")
get_data_parallel_src_rank = _source_of("dp", with_context_parallel="dp-cp")

get_context_parallel_group = _group_of("cp")
get_context_parallel_world_size = _size_of("cp")
get_context_parallel_rank = _rank_of("cp")
get_context_parallel_global_ranks = _ranks_of("cp")
get_context_parallel_group_for_hybrid_ulysses = _group_of("cp-ulysses")
get_context_parallel_for_hybrid_ulysses_world_size = _size_of("cp-ulysses")
get_context_parallel_for_hybrid_ulysses_rank = _rank_of("cp-ulysses")
get_context_parallel_group_for_hybrid_ring = _group_of("cp-ring")
get_context_parallel_for_hybrid_ring_world_size = _size_of("cp-ring")
get_context_parallel_for_hybrid_ring_rank = _rank_of("cp-ring")
get_context_parallel_for_hybrid_ring_global_ranks = _ranks_of("cp-ring")

get_model_parallel_group = _group_of("tp-pp", with_expert_parallel="tp-ep-pp")
get_model_parallel_src_rank = _source_of("tp-pp", with_expert_parallel="tp-ep-pp")
get_tensor_and_data_parallel_group = _group_of("tp-dp", with_context_parallel="tp-dp-cp")
get_tensor_and_data_parallel_world_size = _size_of("tp-dp", with_context_parallel="tp-dp-cp")
get_tensor_and_data_parallel_rank = _rank_of("tp-dp", with_context_parallel="tp-dp-cp")
get_tensor_and_context_parallel_group = _group_of("tp-cp")
get_tensor_and_context_parallel_world_size = _size_of("tp-cp")
get_tensor_and_context_parallel_rank = _rank_of("tp-cp")

get_expert_model_parallel_group = _group_of("ep")
get_expert_model_parallel_world_size = _size_of("ep")
get_expert_model_parallel_rank = _rank_of("ep")
get_expert_tensor_parallel_group = _group_of("expert-tp")
get_expert_tensor_parallel_world_size = _size_of("expert-tp")
get_expert_tensor_parallel_rank = _rank_of("expert-tp")
get_expert_data_parallel_group = _group_of("expert-dp")
get_expert_data_parallel_world_size = _size_of("expert-dp")
get_expert_data_parallel_rank = _rank_of("expert-dp")
get_expert_tensor_and_model_parallel_group = _group_of("tp-ep")
get_expert_tensor_and_model_parallel_world_size = _size_of("tp-ep")
get_expert_tensor_and_model_parallel_rank = _rank_of("tp-ep")
get_expert_tensor_model_pipeline_parallel_group = _group_of("tp-ep-pp")
# MindSpeed-Core-MS's names of three of these.
get_data_modulo_expert_parallel_group = get_expert_data_parallel_group
get_data_modulo_expert_parallel_world_size = get_expert_data_parallel_world_size
get_data_modulo_expert_parallel_rank = get_expert_data_parallel_rank
get_tensor_and_expert_parallel_group = get_expert_tensor_and_model_parallel_group
get_tensor_and_expert_parallel_world_size = get_expert_tensor_and_model_parallel_world_size
get_tensor_and_expert_parallel_rank = get_expert_tensor_and_model_parallel_rank

get_embedding_group = _group_of("embedding")
is_rank_in_embedding_group = _is_member_of("embedding")
get_position_embedding_group = _group_of("position-embedding")
is_rank_in_position_embedding_group = _is_member_of("position-embedding")


# The pipeline --------------------------------------------------------------------------------------------------------


def get_pipeline_model_parallel_first_rank() -> int:
    """Global rank of the first stage of this process's pipeline."""
    return _ranks("pp")[0]


def get_pipeline_model_parallel_last_rank() -> int:
    """Global rank of the last stage of this process's pipeline."""
    return _ranks("pp")[-1]


def get_pipeline_model_parallel_next_rank() -> int:
    """Global rank of the stage after this process's; of the first stage, if this is the last."""
    return _ranks("pp")[(get_pipeline_model_parallel_rank() + 1) % len(_ranks("pp"))]


def get_pipeline_model_parallel_prev_rank() -> int:
    """Global rank of the stage before this process's; of the last stage, if this is the first."""
    return _ranks("pp")[get_pipeline_model_parallel_rank() - 1]


def get_virtual_pipeline_model_parallel_world_size() -> int | None:
    """The number of model chunks of each stage; None without virtual stages."""
    return _current().virtual_size


def set_virtual_pipeline_model_parallel_world_size(size: int | None) -> None:
    """Set the number of model chunks of each stage; None: no virtual stages."""
    _current().virtual_size = size


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    """The number, from 0, of the chunk that this stage builds or runs, or that was set last; None without virtual
    stages."""
    return None if _current().virtual_size is None else get_step_position().chunk


def set_virtual_pipeline_model_parallel_rank(rank: int) -> None:
    """Set the number, from 0, of the chunk that this stage builds or runs. AssertionError if it has no such chunk."""
    size = _current().virtual_size
    assert 0 <= rank < (size or 1), f"chunk {rank} of {size}"
    set_step_position(get_step_position()._replace(chunk=rank))


def is_pipeline_first_stage(ignore_virtual: bool = False) -> bool:
    """Whether the chunk that is built or run (with ignore_virtual: any chunk of this rank) is the model's first."""
    is_first_chunk = ignore_virtual or get_step_position().chunk == 0
    return is_first_chunk and get_pipeline_model_parallel_rank() == 0


def is_pipeline_last_stage(ignore_virtual: bool = False) -> bool:
    """Whether the chunk that is built or run (with ignore_virtual: any chunk of this rank) is the model's last."""
    state = _current()
    stages = get_pipeline_model_parallel_world_size()
    stage, chunk = Placement(stages, state.virtual_size or 1, state.folded).last
    return get_pipeline_model_parallel_rank() == stage and (ignore_virtual or get_step_position().chunk == chunk)


def is_hybrid_cp() -> bool:
    """Whether context parallelism is hybrid: Ulysses within blocks of several ranks, and a ring of several blocks."""
    return len(_ranks("cp-ulysses")) > 1 and len(_ranks("cp-ring")) > 1
