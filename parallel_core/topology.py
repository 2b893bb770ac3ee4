"""The rank grid: an order string such as "tp-cp-ep-dp-pp" gives every process group as a slice of one array.

The leftmost axis of the order varies fastest, as in Megatron: with tensor-parallel size 2, ranks 0 and 1 share a
tensor-parallel group. A group is named by the axes along which its members differ: "tp", "dp-cp", "tp-pp".
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

AXES = ("tp", "cp", "ep", "dp", "pp")


class RankGrid:
    """Ranks 0..world-1 as an array with one named axis per kind of parallelism.

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
            raise ValueError(f"order {order!r}: has no place for {', '.join(missing)}, whose size is above 1")
        self.sizes = {axis: sizes.get(axis, 1) for axis in self.axes}
        shape = [self.sizes[axis] for axis in reversed(self.axes)]
        self._ranks = np.arange(int(np.prod(shape))).reshape(shape)

    def _axis_position(self, axis: str) -> int:
        return len(self.axes) - 1 - self.axes.index(axis)

    def groups(self, name: str) -> np.ndarray:
        """All groups of a kind: `[number of groups, ranks of a group]`, members in grid order, fastest axis first."""
        inside = set(name.split("-"))
        unknown = inside - set(self.axes)
        if unknown:
            raise ValueError(f"group {name!r}: {', '.join(sorted(unknown))} is not an axis of {'-'.join(self.axes)}")
        positions = [self._axis_position(axis) for axis in self.axes]
        outer = sorted(p for p, axis in zip(positions, self.axes, strict=True) if axis not in inside)
        inner = sorted(p for p, axis in zip(positions, self.axes, strict=True) if axis in inside)
        size = int(np.prod([self._ranks.shape[p] for p in inner]))
        return self._ranks.transpose(outer + inner).reshape(-1, size)

    def group_of(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the one group of this kind that holds `rank`."""
        groups = self.groups(name)
        return tuple(int(r) for r in groups[np.nonzero(groups == rank)[0][0]])

    def coordinate(self, axis: str, rank: int) -> int:
        """Where `rank` stands along an axis, 0-based."""
        return int(np.argwhere(self._ranks == rank)[0][self._axis_position(axis)])


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Every process group of a job.

    The world is tp x cp x dp x pp; experts see the same ranks as tp x ep x (expert) dp x pp, where ep divides cp x dp.
    """

    world_size: int
    tensor_model_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    order: str = field(default="tp-cp-ep-dp-pp")

    def __post_init__(self) -> None:
        model = self.tensor_model_parallel_size * self.context_parallel_size * self.pipeline_model_parallel_size
        if self.world_size % model:
            raise ValueError(
                f"world size {self.world_size} is not divisible by --tensor-model-parallel-size "
                f"{self.tensor_model_parallel_size} x --context-parallel-size {self.context_parallel_size} x "
                f"--pipeline-model-parallel-size {self.pipeline_model_parallel_size} = {model}: start a multiple of "
                f"{model} processes, or change the sizes"
            )
        replicas = self.data_parallel_size * self.context_parallel_size
        if replicas % self.expert_model_parallel_size:
            raise ValueError(
                f"--expert-model-parallel-size {self.expert_model_parallel_size} does not divide data-parallel size x "
                f"context-parallel size = {replicas}"
            )

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model: world size / (tp x cp x pp)."""
        return self.world_size // (
            self.tensor_model_parallel_size * self.context_parallel_size * self.pipeline_model_parallel_size
        )

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
        replicas = self.data_parallel_size * self.context_parallel_size
        sizes = {
            "tp": self.tensor_model_parallel_size,
            "ep": self.expert_model_parallel_size,
            "dp": replicas // self.expert_model_parallel_size,
            "pp": self.pipeline_model_parallel_size,
        }
        return RankGrid(self.order, sizes)

    def embedding_group(self, rank: int) -> tuple[int, ...]:
        """First and last stage of `rank`'s pipeline: the holders of a tied embedding."""
        pipeline = self.dense.group_of("pp", rank)
        return tuple(dict.fromkeys((pipeline[0], pipeline[-1])))

    def position_embedding_group(self, rank: int) -> tuple[int, ...]:
        """The first stage of `rank`'s pipeline."""
        return (self.dense.group_of("pp", rank)[0],)
