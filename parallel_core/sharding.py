"""Cuts of parameters over process groups: a `ShardSpec` describes a cut, `place` gives the part that a rank holds.

Groups are named by the kinds of `parallel_core.topology.KINDS`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product
from math import gcd, prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from parallel_core.numerics.dtypes import Array

Coordinates: TypeAlias = Mapping[str, tuple[int, int]]
"""Kind of group -> (this rank's place in its group, number of ranks of the group). A kind that is absent has one rank.
`Topology.coordinates` gives those of any rank, `parallel_state.get_coordinates` this process's."""

MODEL_KINDS = {"dp-cp": ("tp",), "expert-dp": ("expert-tp", "ep")}
"""Kind of the replicas' group -> kinds of groups that cut one replica of a pipeline stage: dense, and of experts."""

MODEL_GROUPS = {"dp-cp": "tp-pp", "expert-dp": "tp-ep-pp"}
"""Kind of the replicas' group -> kind of the group that holds one replica of the whole model."""

SHARDS_OF_STATES = {"dp-cp": "intra-dp-cp", "expert-dp": "intra-expert-dp"}
"""Kind of the replicas' group -> kind of the group over which the distributed optimizer cuts their common state."""

INSTANCES_OF_STATES = {"dp-cp": "inter-dp-cp", "expert-dp": "inter-expert-dp"}
"""Kind of the replicas' group -> kind of the group whose ranks have the same part of that state, each in its own
instance."""

_SIZE_FLAGS = {
    "tp": "--tensor-model-parallel-size",
    "ep": "--expert-model-parallel-size",
    "expert-tp": "--expert-tensor-parallel-size",
}


Role: TypeAlias = Literal["embedding or output", "positions", "head norm", "adapter"]
"""Kinds of parameters that an optimizer distinguishes: word embedding and output layer's weight; learned positions;
norms of queries' and keys' heads; adapters of linears, which alone are trained where there are any."""


@dataclass(frozen=True)
class Cut:
    """A cut of one axis of a parameter over the ranks of a group, all ranks' parts having one length. Fused parts along
    the axis, `parts` equal ones or those of `widths`, are cut each on its own. With a `unit`, blocks of so many entries
    stay whole, and each rank holds equally many of a part (function `share`), on the last ranks with padding beyond the
    part's end; 0: the number of ranks must divide the length of every part."""

    axis: int
    over: str = "tp"
    """Kind of the group over whose ranks the axis is cut."""
    parts: int = 1
    """Fused equal parts along the axis, each cut on its own: 2 for the gate and up halves of a swiglu."""
    widths: tuple[int, ...] = ()
    """Widths of fused parts along the axis that differ, each cut on its own; takes the place of `parts`."""
    unit: int = 0
    """Entries that stay together (a head's rows), where ranks need not divide a part: each rank has `share` of it, and
    entries beyond its end are padding, zeros that no whole array has. 0: ranks divide every part."""

    def parts_of(self, length: int) -> tuple[int, ...]:
        """The widths of the fused parts of an axis with `length` entries: `widths` if there are any, else
        `parts` equal ones, each length // parts."""
        return self.widths or (length // self.parts,) * self.parts


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """The cuts of one parameter, its replicas, and its treatment by the optimizer. Kinds of groups: `replicas` hold the
    same shard, and its gradients are summed over them; `distinct_over`: ranks hold parameters of different names;
    `partial_over`: a rank's gradient is a partial sum; `shared_over`: ranks hold copies of a tied parameter.
    interleaved_rows: of a fused matrix whose parts take turns, the rows of each part in a turn."""

    shape: tuple[int, ...]
    """Shape of the whole parameter."""
    name: str = ""
    """Global name, Megatron's, with global layer numbers. Empty until the model around the parameter is complete."""
    cuts: tuple[Cut, ...] = ()
    """The cuts, applied one after the other; of two on one axis the second cuts what the first left."""

    replicas: str = "dp-cp"
    """Kind of the group whose ranks hold the same shard, "dp-cp" or for experts "expert-dp": gradients are summed over
    it."""
    distinct_over: tuple[str, ...] = ()
    """Kinds of groups whose ranks hold parameters of different names: "ep" for an expert's own parameter."""
    partial_over: str | None = None
    """Kind of the group whose ranks all hold this shard, but each applied it to its share only (its heads, its part of
    the sequence): a rank's gradient is a partial sum, to be summed over the group."""
    shared_over: str | None = None
    """Kind of the group whose ranks hold copies of a tied parameter: gradients are summed over it."""

    weight_decay: bool | None = None
    """Whether weight decay acts; None: by Megatron's rule, on parameters with two axes or more."""
    role: Role | None = None
    interleaved_rows: tuple[int, ...] = ()
    """For a fused matrix whose parts take turns (a group's queries, keys and values): the number of rows of each part
    in a turn."""

    @property
    def is_decayed(self) -> bool:
        """Whether weight decay acts as far as the spec says: `weight_decay`, or where that is None, whether the
        parameter has two axes or more (Megatron's rule). Options of the optimizer can override it."""
        return len(self.shape) > 1 if self.weight_decay is None else self.weight_decay

    @property
    def copied_over(self) -> tuple[str, ...]:
        """Kinds of groups within one replica of the model whose ranks hold equal copies of the shard."""
        apart = {*self.distinct_over, *(cut.over for cut in self.cuts)}
        kinds = tuple(kind for kind in MODEL_KINDS[self.replicas] if kind not in apart)
        return kinds if self.shared_over is None else (*kinds, self.shared_over)

    def named(self, name: str) -> "ShardSpec":
        """The same spec with the parameter's global name."""
        return replace(self, name=name)


@dataclass(frozen=True)
class Box:
    """A box of elements, [start, start + shape) of the global array, and the index `at` of its first element in a
    shard; each tuple has an entry for each axis."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    at: tuple[int, ...]

    @classmethod
    def alone(cls, start: tuple[int, ...], shape: tuple[int, ...]) -> "Box":
        """A box that is all of its shard: it lies at index 0 there."""
        return cls(start, shape, (0,) * len(shape))

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Box":
        """The box that is a whole array of this shape."""
        return cls.alone((0,) * len(shape), shape)

    @property
    def size(self) -> int:
        """Number of elements of the box."""
        return prod(self.shape)

    @property
    def in_whole(self) -> tuple[slice, ...]:
        """The box as slices of the global array, one for each axis."""
        return tuple(slice(a, a + n) for a, n in zip(self.start, self.shape, strict=True))

    @property
    def in_shard(self) -> tuple[slice, ...]:
        """The box as slices of the shard, one for each axis."""
        return tuple(slice(a, a + n) for a, n in zip(self.at, self.shape, strict=True))


@dataclass(frozen=True)
class Place:
    """The part of a parameter that one rank holds. shape: that of its shard, padding included; boxes: the parameter's
    elements in the shard, whose other elements are padding, zeros."""

    spec: ShardSpec
    shape: tuple[int, ...]
    """The shape of the rank's shard, padding included."""
    boxes: tuple[Box, ...]
    """The boxes that make up the shard, in the shard's order; its other elements are padding, zeros."""

    @property
    def size(self) -> int:
        """Number of elements of the shard, padding included."""
        return prod(self.shape)

    @property
    def padding(self) -> int:
        """Number of elements of the shard that are in no box."""
        return self.size - sum(box.size for box in self.boxes)

    @cached_property
    def filled(self) -> tuple[int, ...]:
        """The shape of the shard without the padding at the end of each axis; `shape` if it is nothing but padding."""
        ends = (tuple(a + n for a, n in zip(box.at, box.shape, strict=True)) for box in self.boxes)
        return tuple(map(max, zip(*ends, strict=True))) if self.boxes and self.shape else self.shape

    def cut(self, whole: Array) -> Array:
        """The shard of a whole array; a view where it is one box without padding and has an axis. Raises ValueError for
        another shape than the spec's."""
        if whole.shape != self.spec.shape:
            raise ValueError(f"parameter {self.spec.name}: expected shape {self.spec.shape}, got {whole.shape}")
        if len(self.boxes) == 1 and not self.padding:
            return whole[self.boxes[0].in_whole]
        shard = np.zeros(self.shape, whole.dtype)
        for box in self.boxes:
            shard[box.in_shard] = whole[box.in_whole]
        return shard

    def put(self, shard: Array, whole: Array) -> None:
        """Write the shard into the whole array, without its padding. Raises AssertionError for arrays of other shapes
        than this place's and its spec's."""
        assert shard.shape == self.shape and whole.shape == self.spec.shape, (self, shard.shape, whole.shape)
        for box in self.boxes:
            whole[box.in_whole] = shard[box.in_shard]


def share(length: int, size: int, unit: int = 1) -> int:
    """The number of entries, a multiple of `unit`, that each of `size` ranks holds of an axis with `length` entries; on
    the last ranks some may be padding."""
    return -(-length // (unit * size)) * unit


def place(spec: ShardSpec, coordinates: Coordinates) -> Place:
    """The part of a parameter that the rank at these coordinates holds.

    Raises ValueError if the ranks do not divide an axis (each fused part of it) evenly, where its cut has no `unit`
    that stays together, or if the cut's parts do not add up to the axis.
    """
    runs = [[Run(0, length)] for length in spec.shape]
    for cut in spec.cuts:
        runs[cut.axis] = _narrowed(runs[cut.axis], cut, spec, *coordinates.get(cut.over, (0, 1)))
    shape = tuple(sum(run.length for run in along) for along in runs)
    boxes = (_box(chosen) for chosen in product(*map(_with_offsets, runs)))
    return Place(spec, shape, tuple(boxes))


def merge(shards: Iterable[tuple[Place, Array]]) -> Array:
    """The whole array, from (place, shard) of ranks that together cover it. Raises AssertionError without any, and for
    shards of other shapes than their places'."""
    whole: Array | None = None
    for part, shard in shards:
        whole = np.empty(part.spec.shape, shard.dtype) if whole is None else whole
        part.put(shard, whole)
    assert whole is not None, "no shards"
    return whole


def is_counted(spec: ShardSpec, coordinates: Coordinates) -> bool:
    """Whether this rank counts the parameter in a sum over one replica of the model: it does if it is the first in each
    of its groups of copies (`ShardSpec.copied_over`)."""
    return all(coordinates.get(kind, (0, 1))[0] == 0 for kind in spec.copied_over)


class Run(NamedTuple):
    """Neighbouring entries of a shard along one axis that are neighbours in the whole axis, too; or padding.
    start: the place of the first in the whole axis, None: padding."""

    start: int | None
    """Place of the first entry in the whole axis; None: padding."""
    length: int

    def part(self, first: int, last: int) -> "Run":
        """The entries first..last-1 of this run."""
        return Run(None if self.start is None else self.start + first, last - first)


Runs: TypeAlias = "list[Run]"
"""The runs along one axis, in the order in which a shard holds them."""


def _narrowed(runs: Runs, cut: Cut, spec: ShardSpec, rank: int, size: int) -> Runs:
    """The entries of an axis, already cut to `runs`, that a further cut leaves to the group's rank `rank` of `size`.
    Raises ValueError if it does not divide evenly."""
    length = sum(run.length for run in runs)
    parts = cut.parts_of(length)
    if sum(parts) != length or (not cut.unit and any(part % size for part in parts)):
        flag = _SIZE_FLAGS.get(cut.over, f"a {cut.over} group of size")
        raise ValueError(
            f"parameter {spec.name or '?'}: {length} entries along axis {cut.axis} in {len(parts)} part(s) cannot be "
            f"cut evenly over {flag} {size}: choose one that divides {gcd(*parts)}"
        )
    found: Runs = []
    for part, end in zip(parts, accumulate(parts), strict=True):
        own = share(part, size, cut.unit or 1)
        first, last = (min(n * own, part) for n in (rank, rank + 1))
        found += _between(runs, end - part + first, end - part + last)
        found.append(Run(None, own - (last - first)))
    return _joined(found)


def _between(runs: Runs, first: int, last: int) -> Iterable[Run]:
    """The runs that are local entries first..last-1 of a shard made of `runs`."""
    at = 0
    for run in runs:
        low, high = max(first, at), min(last, at + run.length)
        if low < high:
            yield run.part(low - at, high - at)
        at += run.length


def _joined(runs: Runs) -> Runs:
    """The runs with neighbours that touch joined, without empty ones."""
    joined: Runs = []
    for run in runs:
        before = joined[-1] if joined else None
        if not run.length:
            continue
        if before is not None and run.start == (None if before.start is None else before.start + before.length):
            joined[-1] = Run(before.start, before.length + run.length)
        else:
            joined.append(run)
    return joined


def _with_offsets(runs: Runs) -> list[tuple[int, int, int]]:
    """(global start, length, local offset) of each run that is no padding."""
    offsets = accumulate((run.length for run in runs), initial=0)
    return [(run.start, run.length, at) for run, at in zip(runs, offsets, strict=False) if run.start is not None]


def _box(chosen: tuple[tuple[int, int, int], ...]) -> Box:
    start, shape, at = zip(*chosen, strict=True) if chosen else ((), (), ())
    return Box(start, shape, at)
