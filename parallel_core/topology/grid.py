"""The rank grid: an order string such as "tp-cp-ep-dp-pp" gives every process group as a slice of one array.

The leftmost axis of the order varies fastest, as in Megatron: with tensor-parallel size 2, ranks 0 and 1 share a
tensor-parallel group. A group is named by the axes along which its members differ: "tp", "dp-cp", "tp-pp".
"""

from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array

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
            raise ValueError(f"order {order!r}: has no place for {', '.join(missing)}, whose size is above 1; add it")
        self.sizes = {axis: sizes.get(axis, 1) for axis in self.axes}
        shape = [self.sizes[axis] for axis in reversed(self.axes)]
        self._ranks = np.arange(int(np.prod(shape))).reshape(shape)

    def groups(self, name: str) -> Array:
        """All groups of a kind: `[number of groups, ranks of a group]`, members in grid order, fastest axis first."""
        inner = self._positions(name)
        outer = [position for position in range(self._ranks.ndim) if position not in inner]
        size = int(np.prod([self._ranks.shape[position] for position in inner]))
        return self._ranks.transpose(outer + inner).reshape(-1, size)

    def group_of(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the one group of this kind that holds `rank`."""
        index: list[Any] = list(np.unravel_index(rank, self._ranks.shape))
        for position in self._positions(name):
            index[position] = slice(None)
        return tuple(self._ranks[tuple(index)].reshape(-1).tolist())

    def coordinate(self, axis: str, rank: int) -> int:
        """Where `rank` stands along an axis, 0-based."""
        (position,) = self._positions(axis)
        return int(np.unravel_index(rank, self._ranks.shape)[position])

    def _positions(self, name: str) -> list[int]:
        """Dimensions of the array along which a group's members differ; the last one varies fastest."""
        inside = set(name.split("-"))
        unknown = inside - set(self.axes)
        if unknown:
            raise ValueError(f"group {name!r}: {', '.join(sorted(unknown))} is not an axis of {'-'.join(self.axes)}")
        return sorted(len(self.axes) - 1 - self.axes.index(axis) for axis in inside)
