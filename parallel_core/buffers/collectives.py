"""The collectives around an update: sums of gradients before it, gathers of parameters after it.

Stage 0 (plain data parallelism) sums each bucket on every replica. With the distributed optimizer ("ZeRO" stage 1,
Rajbhandari et al., 2020) a replica is left with the sum of its own part, updates that, and the parts are gathered. If
its state has several instances, each over a part of the replicas, a rank's part is also summed over those that own the
same one. The sums over replicas are made first, the others (`other_sums`) after them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from parallel_core.buffers.layout import BufferPlan, Entry, Span, overlaps, part_of
from parallel_core.sharding import INSTANCES_OF_STATES, SHARDS_OF_STATES, Coordinates


@dataclass(frozen=True)
class Collective:
    """A collective over a span of a buffer, in place. buffer: its index in the list of plans; over: kind of the group
    of ranks."""

    buffer: int
    """Index of the buffer in the list of plans."""
    span: Span
    """The elements of the buffer that are summed, or gathered; before an all-gather the rank has its own part of
    them."""
    over: str
    """Kind of the group of ranks, as "dp-cp" or "tp"."""
    operation: Literal["all_reduce", "reduce_scatter", "all_gather"] = "all_reduce"

    def own_part(self, rank: int, size: int) -> Span:
        """The part of the span that member `rank` of a group of `size` has after a reduce-scatter or before an
        all-gather. Raises AssertionError where `size` does not divide the span."""
        return part_of(self.span, rank, size)


def bucket_reductions(
    buffer: int, plan: BufferPlan, bucket: Span, coordinates: Coordinates, *, sharded: bool
) -> list[Collective]:
    """The collectives that sum the gradients of one of the plan's buckets over the replicas, in order; none over a
    group of one rank. buffer: the index of `plan`. sharded (the distributed optimizer): a reduce-scatter, then a sum of
    the own part of the rank at `coordinates` over the instances of the optimizer's state; else one all-reduce."""
    if not sharded:
        return _between_several([Collective(buffer, bucket, plan.replicas)], coordinates)
    (own,) = overlaps([bucket], plan.owned_by(coordinates, sharded=True))
    sums = [
        Collective(buffer, bucket, SHARDS_OF_STATES[plan.replicas], "reduce_scatter"),
        Collective(buffer, own, INSTANCES_OF_STATES[plan.replicas]),
    ]
    return _between_several(sums, coordinates)


def other_sums(plans: Sequence[BufferPlan], coordinates: Coordinates, *, sharded: bool) -> list[Collective]:
    """The sums that follow those over the replicas, on the spans that the rank owns: of gradients that are partial sums
    over some group, and of a tied parameter's gradients over the ranks that have it. None over a group of one rank.

    The ranks of such a group own the same elements of these parameters, if with `sharded` a tied parameter has a bucket
    of its own (`BucketRule.sharded`). plans: of all buffers of the rank at `coordinates`; sharded: as in
    `bucket_reductions`.
    """
    owned = [plan.owned_by(coordinates, sharded=sharded) for plan in plans]
    sums = [
        Collective(i, span, over)
        for i, whole, over in (*_partial_sums(plans), *_shared_sums(plans))
        for span in overlaps([whole], owned[i])
    ]
    return _between_several(sums, coordinates)


def plan_reductions(
    plans: Sequence[BufferPlan], coordinates: Coordinates, *, sharded: bool = False
) -> list[Collective]:
    """The sums of a step's gradients, in order: each bucket's over the replicas, then `other_sums`; none over a group
    of one rank. plans, coordinates, sharded: as in `other_sums`."""
    over_replicas = [
        reduction
        for i, plan in enumerate(plans)
        for bucket in plan.buckets
        for reduction in bucket_reductions(i, plan, bucket, coordinates, sharded=sharded)
    ]
    return [*over_replicas, *other_sums(plans, coordinates, sharded=sharded)]


def plan_gathers(plans: Sequence[BufferPlan], coordinates: Coordinates, *, sharded: bool = False) -> list[Collective]:
    """The all-gathers that make parameters whole after an update of the owned elements, one for each bucket; none
    unless `sharded` (the distributed optimizer), nor over a group of one rank. plans: of all buffers of the rank at
    `coordinates`."""
    gathers = [
        Collective(i, bucket, SHARDS_OF_STATES[plan.replicas], "all_gather")
        for i, plan in enumerate(plans)
        for bucket in plan.buckets
        if sharded
    ]
    return _between_several(gathers, coordinates)


def _between_several(collectives: Sequence[Collective], coordinates: Coordinates) -> list[Collective]:
    """Those of the collectives whose group has more than one rank."""
    return [collective for collective in collectives if coordinates.get(collective.over, (0, 1))[1] > 1]


def _partial_sums(plans: Sequence[BufferPlan]) -> Iterator[tuple[int, Span, str]]:
    """Index of the buffer, span and kind of the group of each run of neighbouring partial gradients."""
    for i, plan in enumerate(plans):
        kinds = {entry.spec.partial_over for entry in plan.entries}
        for kind in sorted(kind for kind in kinds if kind is not None):
            for run in plan.runs(partial(_is_partial, kind)):
                yield i, run, kind


def _is_partial(kind: str, entry: Entry) -> bool:
    return entry.spec.partial_over == kind


def _shared_sums(plans: Sequence[BufferPlan]) -> Iterator[tuple[int, Span, str]]:
    """Index of the buffer, span and kind of the group of each tied parameter."""
    for i, plan in enumerate(plans):
        for entry in plan.entries:
            if entry.spec.shared_over is not None:
                yield i, entry.span, entry.spec.shared_over
