"""Flat buffers as a plan: where parameters and gradients lie, what an update sweeps, what is summed over which group.

Parameters of one type whose gradients have one type and are summed over one group share a buffer, so that one
collective reduces a bucket and one sweep updates a segment. Offsets are elements; a buffer of gradients has the same
ones as its buffer of parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from math import lcm
from typing import Literal, NamedTuple

from parallel_core.dtypes import FLOATS
from parallel_core.sharding import Coordinates, Place, ShardSpec

ALIGNMENT = 16
"""Elements: in a buffer of float32 every parameter begins at a multiple of 64 bytes, a cache line and a register."""


def aligned(elements: int, alignment: int = ALIGNMENT) -> int:
    """The next multiple of the alignment."""
    return -(-elements // alignment) * alignment


class Span(NamedTuple):
    """Elements start..stop-1 of a buffer."""

    start: int
    stop: int


@dataclass(frozen=True)
class Entry:
    """A parameter in its buffer."""

    index: int
    """Which of the planned parameters it is."""
    place: Place
    start: int

    @property
    def spec(self) -> ShardSpec:
        """Of the parameter."""
        return self.place.spec

    @property
    def stop(self) -> int:
        """After its last element; what follows up to the next entry is padding."""
        return self.start + self.place.size


@dataclass(frozen=True)
class Segment:
    """A contiguous run of parameters that an update treats alike; padding belongs to it."""

    start: int
    stop: int
    weight_decay_multiplier: float


@dataclass(frozen=True)
class BucketRule:
    """How parameters are dealt into buckets, which are reduced one by one."""

    size: int | None = None
    """Elements after which a bucket is closed, by the parameter that reaches it; None: one bucket."""
    entry_alignment: int = ALIGNMENT
    bucket_alignment: int = ALIGNMENT
    isolates_shared: bool = False
    """A tied parameter gets a bucket of its own."""

    @classmethod
    def sharded(cls, replicas: int, size: int | None = None) -> "BucketRule":
        """Megatron's rule for the distributed optimizer, which gives each replica an equal part of every bucket.

        A tied parameter alone in its bucket is cut alike on all stages that hold it.
        """
        return cls(size, entry_alignment=64, bucket_alignment=lcm(replicas, 128), isolates_shared=True)


@dataclass(frozen=True)
class BufferPlan:
    """One buffer of parameters and one of gradients."""

    parameter_type: str
    gradient_type: str
    replicas: str
    """Kind of the group over which gradients are summed."""
    entries: tuple[Entry, ...]
    """In the order of their offsets."""
    buckets: tuple[Span, ...]
    """Contiguous; the first one holds the model's last parameters, whose gradients are complete first."""

    @property
    def size(self) -> int:
        """Elements, padding included."""
        return self.buckets[-1].stop

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """What an update sweeps, covering the buffer."""
        firsts = [next(run) for _, run in groupby(self.entries, key=lambda entry: entry.spec.is_decayed)]
        stops = [*(entry.start for entry in firsts[1:]), self.size]
        return tuple(
            Segment(entry.start, stop, 1.0 if entry.spec.is_decayed else 0.0)
            for entry, stop in zip(firsts, stops, strict=True)
        )

    def runs(self, wanted: Callable[[Entry], bool]) -> list[Span]:
        """The spans of the wanted entries, neighbours joined with the padding between them."""
        groups = ((is_wanted, list(run)) for is_wanted, run in groupby(self.entries, key=wanted))
        return [Span(run[0].start, run[-1].stop) for is_wanted, run in groups if is_wanted]

    def shard(self, rank: int, size: int) -> list[Span]:
        """The part of each bucket that replica `rank` of `size` owns (the distributed optimizer)."""
        lengths = [(bucket.stop - bucket.start) // size for bucket in self.buckets]
        assert all(n * size == b.stop - b.start for n, b in zip(lengths, self.buckets, strict=True)), "see BucketRule"
        starts = (bucket.start + rank * n for bucket, n in zip(self.buckets, lengths, strict=True))
        return [Span(start, start + n) for start, n in zip(starts, lengths, strict=True)]

    def sharded_entries(self, rank: int, size: int) -> list[tuple[Entry, Span]]:
        """The parameters of which a replica owns something, with the elements of the buffer that it owns of each."""
        owned = (
            (entry, Span(max(entry.start, part.start), min(entry.stop, part.stop)))
            for part in self.shard(rank, size)
            for entry in self.entries
        )
        return [(entry, span) for entry, span in owned if span.start < span.stop]


def plan_buffers(
    parameters: Sequence[tuple[Place, str]],
    gradient_type: Callable[[str], str] = lambda parameter_type: "float32",
    rule: BucketRule | None = None,
) -> list[BufferPlan]:
    """Buffers for parameters that are given in the model's order, each with its type.

    gradient_type: from the type of parameters to that of their gradients.
    Raises ValueError that names a parameter of a type that no buffer has.
    """
    by_buffer: dict[tuple[str, str], list[int]] = {}
    for index, (place, dtype) in enumerate(parameters):
        if dtype not in FLOATS:
            raise ValueError(
                f"parameter {place.spec.name}: is of type {dtype}, trained are {', '.join(FLOATS)}; give it one of "
                f"these, or requires_grad=False"
            )
        by_buffer.setdefault((dtype, place.spec.replicas), []).append(index)
    places, rule = [place for place, _ in parameters], rule or BucketRule()
    return [
        BufferPlan(dtype, gradient_type(dtype), replicas, *_lay_out(_dealt(indices, places, rule), places, rule))
        for (dtype, replicas), indices in by_buffer.items()
    ]


def _dealt(indices: Sequence[int], places: Sequence[Place], rule: BucketRule) -> list[list[int]]:
    """Parameters in buckets, the model's last ones first."""
    buckets: list[list[int]] = [[]]
    for index in reversed(indices):
        is_alone = rule.isolates_shared and places[index].spec.shared_over is not None
        if is_alone and buckets[-1]:
            buckets.append([])
        buckets[-1].append(index)
        is_full = rule.size is not None and sum(places[i].size for i in buckets[-1]) >= rule.size
        if is_alone or is_full:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


def _lay_out(
    buckets: Sequence[Sequence[int]], places: Sequence[Place], rule: BucketRule
) -> tuple[tuple[Entry, ...], tuple[Span, ...]]:
    """Offsets; inside a bucket parameters that are treated alike lie together, in the model's order."""

    def treatment(index: int) -> tuple[bool, str, int]:
        spec = places[index].spec
        return not spec.is_decayed, spec.partial_over or "", index

    entries, spans, start = [], [], 0
    for bucket in buckets:
        first = start
        for index in sorted(bucket, key=treatment):
            entries.append(Entry(index, places[index], start))
            start += aligned(places[index].size, rule.entry_alignment)
        start = first + aligned(start - first, rule.bucket_alignment)
        spans.append(Span(first, start))
    return tuple(entries), tuple(spans)


@dataclass(frozen=True)
class Reduction:
    """A sum of a span of a gradient buffer over a kind of group, in place."""

    buffer: int
    """Index of the plan."""
    span: Span
    over: str
    operation: Literal["all_reduce", "reduce_scatter"] = "all_reduce"


def plan_reductions(plans: Sequence[BufferPlan], coordinates: Coordinates, *, sharded: bool = False) -> list[Reduction]:
    """What is summed after the last backward, in order; nothing over groups of one.

    The sum over replicas comes first. With `sharded` each replica is left with its own part of every bucket, so the
    sums of whole gradients - partial ones, and those of a tied parameter - come before.
    """
    operation: Literal["all_reduce", "reduce_scatter"] = "reduce_scatter" if sharded else "all_reduce"
    replicas = [
        Reduction(i, bucket, plan.replicas, operation) for i, plan in enumerate(plans) for bucket in plan.buckets
    ]
    others = [*_partial_sums(plans), *_shared_sums(plans)]
    ordered = [*others, *replicas] if sharded else [*replicas, *others]
    return [reduction for reduction in ordered if coordinates.get(reduction.over, (0, 1))[1] > 1]


def _partial_sums(plans: Sequence[BufferPlan]) -> Iterator[Reduction]:
    for i, plan in enumerate(plans):
        kinds = {entry.spec.partial_over for entry in plan.entries}
        for kind in sorted(kind for kind in kinds if kind is not None):
            for run in plan.runs(partial(_is_partial, kind)):
                yield Reduction(i, run, kind)


def _is_partial(kind: str, entry: Entry) -> bool:
    return entry.spec.partial_over == kind


def _shared_sums(plans: Sequence[BufferPlan]) -> Iterator[Reduction]:
    for i, plan in enumerate(plans):
        for entry in plan.entries:
            if entry.spec.shared_over is not None:
                yield Reduction(i, Span(entry.start, entry.stop), entry.spec.shared_over)
