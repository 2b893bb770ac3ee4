"""A parameter knows its cut (DESIGN, decision 2).

`ShardSpec` is read by initialisation, checkpoints, gradient norms and conversion, so none of them looks at the
letters of a parameter's name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """How one parameter is cut over the tensor-parallel group."""

    shape: tuple[int, ...]
    """Global shape."""
    name: str = ""
    """Global name, Megatron's, with global layer numbers. Empty until the model around the parameter is complete."""
    axis: int | None = None
    """The axis that is cut; None: every rank holds the whole."""
    parts: int = 1
    """Fused equal parts along the axis, each cut on its own: 2 for the gate and up halves of a swiglu."""

    partial_gradient: bool = False
    """Whole on every rank of the group, but each applied it to its share only (its heads, its piece of the sequence):
    the gradient is the sum over the group."""

    def named(self, name: str) -> "ShardSpec":
        """The same cut under its global name."""
        return replace(self, name=name)

    def local_shape(self, size: int) -> tuple[int, ...]:
        """Shape of one rank's shard in a group of `size`."""
        if self.axis is None:
            return self.shape
        whole = self.shape[self.axis]
        if whole % (self.parts * size):
            raise ValueError(
                f"parameter {self.name or '?'}: {whole} entries along axis {self.axis} in {self.parts} part(s) cannot "
                f"be cut evenly over --tensor-model-parallel-size {size}: choose one that divides {whole // self.parts}"
            )
        return (*self.shape[: self.axis], whole // size, *self.shape[self.axis + 1 :])

    def ranges(self, rank: int, size: int) -> list[tuple[int, int]]:
        """`rank`'s pieces along the cut axis as global (start, stop), in the order in which the shard holds them."""
        if self.axis is None:
            return []
        part = self.shape[self.axis] // self.parts
        piece = self.local_shape(size)[self.axis] // self.parts
        return [(p * part + rank * piece, p * part + (rank + 1) * piece) for p in range(self.parts)]

    def cut(self, whole: np.ndarray, rank: int, size: int) -> np.ndarray:
        """`rank`'s shard of a whole array."""
        if whole.shape != self.shape:
            raise ValueError(f"parameter {self.name}: expected shape {self.shape}, got {whole.shape}")
        if self.axis is None:
            return whole
        along = [slice(None)] * self.axis
        pieces = [whole[(*along, slice(start, stop))] for start, stop in self.ranges(rank, size)]
        return np.concatenate(pieces, axis=self.axis)

    def merge(self, shards: Sequence[np.ndarray]) -> np.ndarray:
        """The whole array from the shards of all ranks of the group, in rank order."""
        if self.axis is None:
            return shards[0]
        whole = np.empty(self.shape, shards[0].dtype)
        along = [slice(None)] * self.axis
        for rank, shard in enumerate(shards):
            offset = 0
            for start, stop in self.ranges(rank, len(shards)):
                whole[(*along, slice(start, stop))] = shard[(*along, slice(offset, offset + stop - start))]
                offset += stop - start
        return whole
