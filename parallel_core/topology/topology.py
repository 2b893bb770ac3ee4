"""Every process group of a job, as Megatron lays them out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import NamedTuple

from parallel_core.context import ContextLayout
from parallel_core.findings import ConfigError, Finding
from parallel_core.numerics.dtypes import Array
from parallel_core.sizes import (
    RANK_ORDERS,
    expert_copies_are_whole,
    expert_parallel_size,
    instances_share_the_replicas,
    model_copies_are_whole,
    model_parallel_size,
    ulysses_degree_divides,
    ulysses_degree_is_read,
)
from parallel_core.topology.grid import RankGrid

RULES = (
    model_copies_are_whole,
    expert_copies_are_whole,
    instances_share_the_replicas,
    ulysses_degree_divides,
    ulysses_degree_is_read,
)


class Kind(NamedTuple):
    """A kind of process group."""

    grid: str
    """"dense" or "expert", and then `name` names axes of that grid; "special", and then it is the kind's own."""
    name: str
    meaning: str
    """What its members have in common, or share."""


KINDS = {
    "tp": Kind("dense", "tp", "shards of the same layers"),
    "cp": Kind("dense", "cp", "pieces of the same sequences"),
    "dp": Kind("dense", "dp", "the same parameters, other samples"),
    "pp": Kind("dense", "pp", "the stages of a pipeline, first to last"),
    "dp-cp": Kind("dense", "dp-cp", "the same parameters"),
    "tp-pp": Kind("dense", "tp-pp", "one copy of the parameters"),
    "tp-dp": Kind("dense", "tp-dp", "a stage and a piece of the sequence"),
    "tp-cp": Kind("dense", "tp-cp", "the same samples in the same stage"),
    "tp-dp-cp": Kind("dense", "tp-dp-cp", "a stage"),
    "cp-ulysses": Kind("special", "ulysses", "context-parallel neighbours that exchange heads"),
    "cp-ring": Kind("special", "ring", "context-parallel ranks around which keys and values travel"),
    "ep": Kind("expert", "ep", "other experts of the same layers"),
    "expert-tp": Kind("expert", "tp", "shards of the same experts"),
    "expert-dp": Kind("expert", "dp", "the same shards of the same experts, other samples"),
    "intra-dp-cp": Kind("special", "intra_dp_cp", "one instance of the distributed optimizer's state"),
    "inter-dp-cp": Kind("special", "inter_dp_cp", "the same part of that state in each instance"),
    "intra-expert-dp": Kind("special", "intra_expert_dp", "one instance of that state for the same experts"),
    "inter-expert-dp": Kind("special", "inter_expert_dp", "the same part of it in each instance"),
    "tp-ep": Kind("expert", "tp-ep", "all experts of the same layers"),
    "tp-ep-pp": Kind("expert", "tp-ep-pp", "all experts of the model"),
    "embedding": Kind("special", "embedding", "holders of a tied embedding: first and last stage"),
    "position-embedding": Kind("special", "position_embedding", "holders of position embeddings: the first stage"),
}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The sizes of a job and the groups that follow from them.

    The world is tp x cp x dp x pp. Experts see the same ranks as (expert) tp x ep x (expert) dp x pp. A stage that the
    embedding has for itself changes no group: it is the first.
    """

    world_size: int
    tensor_model_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    """None: the tensor-parallel size."""
    context_parallel_algo: str | None = None
    """None: the ring."""
    ulysses_degree_in_cp: int | None = None
    """Context-parallel neighbours that exchange heads, with hybrid_cp_algo."""
    num_distributed_optimizer_instances: int = 1
    """Copies of the distributed optimizer's state: it is cut over the replicas of each."""
    order: str = RANK_ORDERS[0]
    """Axes, fastest varying first."""

    def __post_init__(self) -> None:
        finding = next(chain(self._wrong_sizes(), *(rule(self) for rule in RULES)), None)
        if finding is not None:
            raise ConfigError([finding])
        ContextLayout.of(self.context_parallel_size, self.context_parallel_algo, self.ulysses_degree_in_cp)

    def _wrong_sizes(self) -> Iterator[Finding]:
        for field in fields(self):
            size = getattr(self, field.name)
            is_a_size = isinstance(size, Integral) and int(size) >= 1
            if "int" in str(field.type) and not is_a_size and size is not field.default:
                flag = f"--{field.name.replace('_', '-')}"
                yield Finding(flag, repr(size), "must be at least 1, a whole number", "change it")

    @property
    def rank_order(self) -> str:
        """The order by the config's name."""
        return self.order

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model: world size / (tp x cp x pp)."""
        return self.world_size // model_parallel_size(self)

    @property
    def expert_tensor_size(self) -> int:
        """Ranks that share an expert."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def expert_data_parallel_size(self) -> int:
        """Replicas of an expert: world size / (expert tp x ep x pp)."""
        return self.world_size // expert_parallel_size(self)

    @cached_property
    def dense(self) -> RankGrid:
        """The grid of everything but the experts."""
        sizes = {
            "tp": self.tensor_model_parallel_size,
            "cp": self.context_parallel_size,
            "dp": self.data_parallel_size,
            "pp": self.pipeline_model_parallel_size,
        }
        return RankGrid(self.order, sizes)

    @cached_property
    def expert(self) -> RankGrid:
        """The grid of the experts: context parallelism folded into data parallelism, from which ep takes its share."""
        sizes = {
            "tp": self.expert_tensor_size,
            "ep": self.expert_model_parallel_size,
            "dp": self.expert_data_parallel_size,
            "pp": self.pipeline_model_parallel_size,
        }
        return RankGrid(self.order, sizes)

    def groups(self, kind: str) -> Array:
        """All groups of one of `KINDS`: [number of groups, ranks of a group]."""
        where = KINDS[kind]
        if where.grid == "special":
            return getattr(self, f"_{where.name}_groups")
        grid: RankGrid = getattr(self, where.grid)
        return grid.groups(where.name)

    def group(self, kind: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group of one of `KINDS` that `rank` belongs to; ValueError where it belongs to none."""
        where = KINDS[kind]
        if where.grid != "special":
            return getattr(self, where.grid).group_of(where.name, rank)
        groups = self.groups(kind)
        mine = groups[(groups == rank).any(axis=1)]
        if not len(mine):
            raise ValueError(f"rank {rank} is in no {kind} group")
        return tuple(mine[0].tolist())

    def is_member(self, kind: str, rank: int) -> bool:
        """Whether `rank` is in a group of this kind: of embedding groups only first and last stages are members."""
        return KINDS[kind].grid != "special" or bool((self.groups(kind) == rank).any())

    def coordinates(self, rank: int) -> dict[str, tuple[int, int]]:
        """Kind -> (place in the group, ranks of the group), for every kind of group that `rank` is in."""
        groups = {kind: self.group(kind, rank) for kind in KINDS if self.is_member(kind, rank)}
        return {kind: (ranks.index(rank), len(ranks)) for kind, ranks in groups.items()}

    @cached_property
    def _blocks(self) -> Array:
        """[context-parallel groups, places in the ring, neighbours that exchange heads]."""
        layout = ContextLayout.of(self.context_parallel_size, self.context_parallel_algo, self.ulysses_degree_in_cp)
        return self.dense.groups("cp").reshape(-1, layout.ring, layout.ulysses)

    @cached_property
    def _ulysses_groups(self) -> Array:
        return _rows(self._blocks)

    @cached_property
    def _ring_groups(self) -> Array:
        return _rows(self._blocks.swapaxes(1, 2))

    def _instances(self, kind: str) -> Array:
        """[groups of replicas, instances of the distributed optimizer's state, replicas of an instance]."""
        replicas = self.groups(kind)
        return replicas.reshape(len(replicas), self.num_distributed_optimizer_instances, -1)

    @cached_property
    def _intra_dp_cp_groups(self) -> Array:
        return _rows(self._instances("dp-cp"))

    @cached_property
    def _inter_dp_cp_groups(self) -> Array:
        return _rows(self._instances("dp-cp").swapaxes(1, 2))

    @cached_property
    def _intra_expert_dp_groups(self) -> Array:
        return _rows(self._instances("expert-dp"))

    @cached_property
    def _inter_expert_dp_groups(self) -> Array:
        return _rows(self._instances("expert-dp").swapaxes(1, 2))

    @cached_property
    def _embedding_groups(self) -> Array:
        pipelines = self.dense.groups("pp")
        return pipelines[:, [0, -1]] if pipelines.shape[1] > 1 else pipelines

    @cached_property
    def _position_embedding_groups(self) -> Array:
        return self.dense.groups("pp")[:, :1]


def _rows(groups: Array) -> Array:
    """[..., ranks of a group] as [number of groups, ranks of a group]."""
    return groups.reshape(-1, groups.shape[-1])
