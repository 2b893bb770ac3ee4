"""Every process group of a job, as Megatron lays them out: most are slices of a rank grid.

The leftmost axis of an order such as "tp-cp-ep-dp-pp" varies fastest: with tensor-parallel size 2, ranks 0 and 1 share
a tensor-parallel group. A slice is named by the axes along which its members differ: "tp", "dp-cp", "tp-pp".
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

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

AXES = ("tp", "cp", "ep", "dp", "pp")


class RankGrid:
    """Ranks 0..world-1 as an array with one named axis per kind of parallelism. Raises ValueError for an order with an
    axis that is none of `AXES`, with an axis twice, or without an axis whose size is above 1.

    Args:
        order: axis names joined by "-", fastest varying first.
        sizes: size of each axis; axes of `order` that are absent have size 1.
    """

    def __init__(self, order: str, sizes: dict[str, int]) -> None:
        self.axes = tuple(order.split("-"))
        if sorted(set(self.axes)) != sorted(self.axes) or not set(self.axes) <= set(AXES):
            raise ValueError(f"order {order!r}: must name each of {', '.join(AXES)} at most once, joined by '-'")
        missing = [axis for axis, size in sizes.items() if size > 1 and axis not in self.axes]
        if missing:
            raise ValueError(f"order {order!r}: has no place for {', '.join(missing)}, whose size is above 1; add it")
        self.sizes = {axis: sizes.get(axis, 1) for axis in self.axes}
        shape = [self.sizes[axis] for axis in reversed(self.axes)]
        self._ranks = np.arange(int(np.prod(shape))).reshape(shape)

    def groups(self, name: str) -> Array:
        """All groups whose members differ along the axes in `name` ("dp-cp"): `[number of groups, ranks of a group]`,
        members in grid order, fastest axis first. Raises ValueError for an axis that the grid lacks."""
        inner = self._positions(name)
        outer = [position for position in range(self._ranks.ndim) if position not in inner]
        size = int(np.prod([self._ranks.shape[position] for position in inner]))
        return self._ranks.transpose(outer + inner).reshape(-1, size)

    def group_of(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the one group that holds `rank`, of those whose members differ along the axes in `name`
        ("dp-cp"), in grid order. Raises ValueError for an axis or a rank that the grid lacks."""
        index: list[Any] = list(np.unravel_index(rank, self._ranks.shape))
        for position in self._positions(name):
            index[position] = slice(None)
        return tuple(self._ranks[tuple(index)].reshape(-1).tolist())

    def coordinate(self, axis: str, rank: int) -> int:
        """The coordinate of `rank` along an axis, 0-based. Raises ValueError for an axis or a rank that the grid
        lacks."""
        (position,) = self._positions(axis)
        return int(np.unravel_index(rank, self._ranks.shape)[position])

    def _positions(self, name: str) -> list[int]:
        """Dimensions of the array of ranks along which the members of a group of this name differ, slowest varying
        first."""
        inside = set(name.split("-"))
        unknown = inside - set(self.axes)
        if unknown:
            raise ValueError(f"group {name!r}: {', '.join(sorted(unknown))} is not an axis of {'-'.join(self.axes)}")
        return sorted(len(self.axes) - 1 - self.axes.index(axis) for axis in inside)


RULES = (
    model_copies_are_whole,
    expert_copies_are_whole,
    instances_share_the_replicas,
    ulysses_degree_divides,
    ulysses_degree_is_read,
)


class Kind(NamedTuple):
    """A kind of process group. grid: the grid of ranks of which its groups are slices, "dense" or "expert"; "" if they
    are slices of none. name: the axes of that grid along which members differ, joined by "-"; without a grid the kind's
    own name. meaning: a few words on what connects the members of a group."""

    grid: str
    """"dense" or "expert", and then `name` names axes of that grid; empty where its groups are no slices of a grid."""
    name: str
    meaning: str
    """A few words on what connects the members of a group: what they have in common ("a stage"), share ("shards of
    ..."), or exchange."""


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
    "cp-ulysses": Kind("", "cp-ulysses", "context-parallel neighbours that exchange heads"),
    "cp-ring": Kind("", "cp-ring", "context-parallel ranks around which keys and values travel"),
    "ep": Kind("expert", "ep", "other experts of the same layers"),
    "expert-tp": Kind("expert", "tp", "shards of the same experts"),
    "expert-dp": Kind("expert", "dp", "the same shards of the same experts, other samples"),
    "intra-dp-cp": Kind("", "intra-dp-cp", "one instance of the distributed optimizer's state"),
    "inter-dp-cp": Kind("", "inter-dp-cp", "the same part of that state in each instance"),
    "intra-expert-dp": Kind("", "intra-expert-dp", "one instance of that state for the same experts"),
    "inter-expert-dp": Kind("", "inter-expert-dp", "the same part of it in each instance"),
    "tp-ep": Kind("expert", "tp-ep", "all experts of the same layers"),
    "tp-ep-pp": Kind("expert", "tp-ep-pp", "all experts of the model"),
    "embedding": Kind("", "embedding", "holders of a tied embedding: first and last stage"),
    "position-embedding": Kind("", "position-embedding", "holders of position embeddings: the first stage"),
}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The sizes of a job and the process groups that follow from them. Raises ConfigError with the first finding about
    sizes that are no whole numbers from 1 on, or do not fit together, ValueError for an unknown context-parallel
    algorithm.

    The world is tp x cp x dp x pp. For experts the same ranks are (expert) tp x ep x (expert) dp x pp. A stage that
    holds nothing but the embedding (--standalone-embedding-stage) is the first of the pp stages, not one more.
    """

    world_size: int
    tensor_model_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    """Number of ranks over which one expert is cut; None: the tensor-parallel size."""
    context_parallel_algo: str | None = None
    """One of `CONTEXT_PARALLEL_ALGORITHMS`; None: the ring."""
    ulysses_degree_in_cp: int | None = None
    """Number of context-parallel neighbours that exchange heads, read with hybrid_cp_algo."""
    num_distributed_optimizer_instances: int = 1
    """Number of copies of the distributed optimizer's state: it is cut over the replicas of each instance."""
    order: str = RANK_ORDERS[0]
    """Axes of the rank grid, the fastest varying first."""

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

    @classmethod
    def of(cls, sizes: Any, **others: Any) -> "Topology":
        """The topology of the sizes that another object has as attributes of the same names; `others` take
        precedence."""
        same = (field.name for field in fields(cls) if field.name not in others)
        return cls(**{name: getattr(sizes, name) for name in same}, **others)

    @property
    def rank_order(self) -> str:
        """The field `order` under the name that the config's parallel section has for it."""
        return self.order

    @property
    def data_parallel_size(self) -> int:
        """The number of replicas of the model: world size / (tp x cp x pp)."""
        return self.world_size // model_parallel_size(self)

    @property
    def expert_tensor_size(self) -> int:
        """The number of tensor-parallel ranks over which one expert is cut."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def expert_data_parallel_size(self) -> int:
        """The number of replicas of an expert: world size / (expert tp x ep x pp)."""
        return self.world_size // expert_parallel_size(self)

    @cached_property
    def dense(self) -> RankGrid:
        """The grid of ranks for everything but the experts."""
        sizes = {
            "tp": self.tensor_model_parallel_size,
            "cp": self.context_parallel_size,
            "dp": self.data_parallel_size,
            "pp": self.pipeline_model_parallel_size,
        }
        return RankGrid(self.order, sizes)

    @cached_property
    def expert(self) -> RankGrid:
        """The grid of ranks for the experts: context parallelism is folded into data parallelism, from which ep takes
        its share."""
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
        if not where.grid:
            return self._further_groups[kind]
        grid: RankGrid = getattr(self, where.grid)
        return grid.groups(where.name)

    def group(self, kind: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group of one of `KINDS` that `rank` belongs to. Raises ValueError where it belongs to none,
        KeyError for another kind."""
        where = KINDS[kind]
        if where.grid:
            grid: RankGrid = getattr(self, where.grid)
            return grid.group_of(where.name, rank)
        groups = self.groups(kind)
        mine = groups[(groups == rank).any(axis=1)]
        if not len(mine):
            raise ValueError(f"rank {rank} is in no {kind} group")
        return tuple(mine[0].tolist())

    def is_member(self, kind: str, rank: int) -> bool:
        """Whether `rank`, one of the job's, is in a group of one of `KINDS`: in "embedding" are the ranks of the first
        and the last stage, in "position-embedding" those of the first, in every other kind all."""
        return KINDS[kind].grid != "" or bool((self.groups(kind) == rank).any())

    def coordinates(self, rank: int) -> dict[str, tuple[int, int]]:
        """Kind -> (place in the group, from 0; number of ranks of the group), for every kind of group that `rank` is
        in."""
        groups = {kind: self.group(kind, rank) for kind in KINDS if self.is_member(kind, rank)}
        return {kind: (ranks.index(rank), len(ranks)) for kind, ranks in groups.items()}

    @cached_property
    def _further_groups(self) -> dict[str, Array]:
        """Kind -> all its groups [number of groups, ranks of a group], for the kinds that are no slices of a grid."""
        layout = ContextLayout.of(self.context_parallel_size, self.context_parallel_algo, self.ulysses_degree_in_cp)
        pipelines, blocks = self.dense.groups("pp"), self.dense.groups("cp").reshape(-1, layout.ring, layout.ulysses)
        found = {
            "cp-ulysses": blocks,
            "cp-ring": blocks.swapaxes(1, 2),
            "embedding": pipelines[:, [0, -1]] if pipelines.shape[1] > 1 else pipelines,
            "position-embedding": pipelines[:, :1],
        }
        for kind in ("dp-cp", "expert-dp"):
            replicas = self.groups(kind)
            instances = replicas.reshape(len(replicas), self.num_distributed_optimizer_instances, -1)
            found |= {f"intra-{kind}": instances, f"inter-{kind}": instances.swapaxes(1, 2)}
        return {kind: groups.reshape(-1, groups.shape[-1]) for kind, groups in found.items()}
