"""Offsets: parameters in buffers, segments that are treated alike, buckets, and the part of them that a rank owns."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import lcm
from typing import Generic, NamedTuple, TypeVar

from parallel_core.numerics.dtypes import FLOATS
from parallel_core.sharding import SHARDS_OF_STATES, Coordinates, Place, ShardSpec

ALIGNMENT = 16
"""Elements: in a buffer of float32 every parameter begins at a multiple of 64 bytes, a cache line."""


def aligned(elements: int, alignment: int = ALIGNMENT) -> int:
    """The least multiple of `alignment` that is not below `elements`."""
    return -(-elements // alignment) * alignment


class Span(NamedTuple):
    """The elements start..stop-1 of a buffer."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of its elements."""
        return self.stop - self.start


def overlaps(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """The intersections of each of `spans` with each of `others`, but for empty ones; in the order of `spans`, then of
    `others`."""
    common = (Span(max(a.start, b.start), min(a.stop, b.stop)) for a in spans for b in others)
    return [span for span in common if span.size > 0]


def overlaps_in_order(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """For each intersection of one of `spans` with one of `others`, the index in `spans` and the intersection. In each
    list spans must ascend, not overlap and not be empty."""
    first = 0
    for number, span in enumerate(spans):
        while first < len(others) and others[first].stop <= span.start:
            first += 1
        index = first
        while index < len(others) and others[index].start < span.stop:
            yield number, Span(max(span.start, others[index].start), min(span.stop, others[index].stop))
            index += 1


@dataclass(frozen=True)
class Entry:
    """The elements of a buffer, from number `start` on, that are the part of a parameter that the rank holds. index:
    of the parameter in the list that `plan_buffers` was given; place: of that part in the global array."""

    index: int
    """Index of the parameter in the list that `plan_buffers` was given."""
    place: Place
    start: int

    @property
    def spec(self) -> ShardSpec:
        """The parameter's global shape, cuts and groups."""
        return self.place.spec

    @property
    def stop(self) -> int:
        """The element after its last one; elements between it and the next entry belong to no parameter."""
        return self.start + self.place.size

    @property
    def span(self) -> Span:
        """The elements from `start` to `stop` - 1."""
        return Span(self.start, self.stop)


Treated = TypeVar("Treated", bound=Hashable)


@dataclass(frozen=True)
class Segment(Generic[Treated]):
    """A contiguous run of parameters that an update treats alike (as with or without weight decay), padding included.
    treatment: the value that the function `treat` of `BufferPlan.segments` gave for them."""

    span: Span
    treatment: Treated


@dataclass(frozen=True)
class BucketRule:
    """The rule that deals parameters into buckets, each of which is reduced on its own. size: elements of its
    parameters from which on a bucket gets no further one (None: no limit). Alignments are in elements: of the offset of
    a parameter in its bucket, and of the size of a bucket. isolates_shared: a tied parameter gets its own bucket."""

    size: int | None = None
    """Elements of its parameters from which on a bucket gets no further one (they are dealt from the model's last one
    on); None: no bucket is closed for its size."""
    entry_alignment: int = ALIGNMENT
    bucket_alignment: int = ALIGNMENT
    isolates_shared: bool = False
    """Whether a tied parameter gets a bucket of its own."""

    @classmethod
    def sharded(cls, replicas: int, size: int | None = None, entry_alignment: int = 64) -> "BucketRule":
        """Megatron's rule for the distributed optimizer, by which each of `replicas` ranks owns an equal part of every
        bucket. size, entry_alignment: the fields; with Megatron's 64 a bucket is aligned to the least common multiple
        of `replicas` and 128, else to replicas x entry_alignment.

        A tied parameter gets a bucket of its own, so that all stages that hold it cut it alike.
        """
        bucket_alignment = lcm(replicas, 128) if entry_alignment == 64 else replicas * entry_alignment
        return cls(size, entry_alignment, bucket_alignment, isolates_shared=True)


@dataclass(frozen=True)
class BufferPlan:
    """The layout of one buffer of parameters and of the buffer of their gradients, whose offsets are the same.
    replicas: kind of the group over which the gradients are summed, as "dp-cp"."""

    parameter_type: str
    gradient_type: str
    replicas: str
    """Kind of the group over which its gradients are summed, as "dp-cp"."""
    entries: tuple[Entry, ...]
    """The parameters in the order of their offsets."""
    buckets: tuple[Span, ...]
    """Contiguous spans that cover the buffer; the first one holds those of its parameters that are last in the
    model."""

    @property
    def size(self) -> int:
        """The number of elements, padding included."""
        return self.buckets[-1].stop

    def segments(self, treat: Callable[[ShardSpec], Treated]) -> tuple[Segment[Treated], ...]:
        """Runs of neighbouring parameters for which `treat` gives the same, in order; they cover the buffer."""
        runs = [(treated, next(run).start) for treated, run in groupby(self.entries, lambda entry: treat(entry.spec))]
        stops = [*(start for _, start in runs[1:]), self.size]
        return tuple(Segment(Span(start, stop), treated) for (treated, start), stop in zip(runs, stops, strict=True))

    @property
    def span(self) -> Span:
        """The whole buffer."""
        return Span(0, self.size)

    def runs(self, wanted: Callable[[Entry], bool]) -> list[Span]:
        """The spans of the entries that are wanted, in order; neighbours are one span, with the padding between
        them."""
        groups = ((is_wanted, list(run)) for is_wanted, run in groupby(self.entries, key=wanted))
        return [Span(run[0].start, run[-1].stop) for is_wanted, run in groups if is_wanted]

    def owned_by(self, coordinates: Coordinates, *, sharded: bool) -> tuple[Span, ...]:
        """The spans that the rank at these coordinates updates: the whole buffer, or with `sharded` (the distributed
        optimizer) its part of each bucket."""
        if not sharded:
            return (self.span,)
        rank, size = coordinates.get(SHARDS_OF_STATES[self.replicas], (0, 1))
        return tuple(part_of(bucket, rank, size) for bucket in self.buckets)

    def owners(self, span: Span, size: int) -> list[int]:
        """The ranks, by their numbers in a group of `size` that shares each bucket, that own a part of `span`."""
        parts = {rank: [part_of(bucket, rank, size) for bucket in self.buckets] for rank in range(size)}
        return [rank for rank, owned in parts.items() if overlaps([span], owned)]

    def entries_in(self, spans: Sequence[Span]) -> list[tuple[Entry, Span]]:
        """The parameters that have elements in the spans, in the order of offsets, once for each such span, with the
        intersection."""
        return [(entry, span) for entry in self.entries for span in overlaps([entry.span], spans)]


def part_of(bucket: Span, rank: int, size: int) -> Span:
    """The part of a bucket that rank `rank` of `size` owns; all parts are equal (AssertionError where `size` does not
    divide the bucket)."""
    length = bucket.size // size
    assert length * size == bucket.size, f"{bucket} is not cut evenly over {size} ranks: see BucketRule"
    return Span(bucket.start + rank * length, bucket.start + (rank + 1) * length)


def plan_buffers(
    parameters: Sequence[tuple[Place, str]],
    gradient_type: Callable[[str], str] = lambda parameter_type: "float32",
    rule: BucketRule | None = None,
    keys: Sequence[Hashable] | None = None,
) -> list[BufferPlan]:
    """Buffers for parameters that are given in the model's order, each with its place and its type, as "bfloat16"; one
    buffer for each type and kind of the replicas' group.

    gradient_type: the type of gradients from that of their parameters. rule: None stands for `BucketRule()`. keys: one
    for each parameter; neighbours with different keys are in different buckets. Raises ValueError that names a
    parameter whose type is not float32, float16 or bfloat16.
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
        BufferPlan(dtype, gradient_type(dtype), replicas, *_lay_out(_dealt(indices, places, rule, keys), places, rule))
        for (dtype, replicas), indices in by_buffer.items()
    ]


def _dealt(
    indices: Sequence[int], places: Sequence[Place], rule: BucketRule, keys: Sequence[Hashable] | None
) -> list[list[int]]:
    """The indices of the parameters of each bucket; the model's last parameters come first, also inside a bucket (which
    `_lay_out` sorts again)."""

    def key(index: int) -> tuple[Hashable, int | None]:
        is_alone = rule.isolates_shared and places[index].spec.shared_over is not None
        return keys and keys[index], index if is_alone else None

    buckets: list[list[int]] = []
    for _, together in groupby(reversed(indices), key=key):
        buckets.append([])
        for index in together:
            if rule.size is not None and sum(places[i].size for i in buckets[-1]) >= rule.size:
                buckets.append([])
            buckets[-1].append(index)
    return buckets


def _lay_out(
    buckets: Sequence[Sequence[int]], places: Sequence[Place], rule: BucketRule
) -> tuple[tuple[Entry, ...], tuple[Span, ...]]:
    """Entries with offsets, and the span of each bucket. Inside a bucket, whatever its given order, the parameters with
    weight decay come first; of either kind those without partial gradients; else they lie in the model's order."""

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


def offloaded(plan: BufferPlan, owned: Sequence[Span], fraction: float) -> tuple[list[Span], list[Span]]:
    """The part of the owned spans whose optimizer states are offloaded, and the rest; cut only where a parameter begins
    or a span ends.

    The first part begins with the first span, and is the shortest that has at least `fraction` of the owned elements.
    """
    elsewhere: list[Span] = []
    rest: list[Span] = []
    wanted, before = fraction * sum(span.size for span in owned), 0
    for span in owned:
        edges = [span.start, *(e.start for e in plan.entries if span.start < e.start < span.stop), span.stop]
        cut = next((edge for edge in edges if before + edge - span.start >= wanted), span.stop)
        if span.start < cut:
            elsewhere.append(Span(span.start, cut))
        if cut < span.stop:
            rest.append(Span(cut, span.stop))
        before += span.size
    return elsewhere, rest
