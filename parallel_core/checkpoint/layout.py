"""Moving data from one layout to another: shards are boxes of the whole array, so moves are intersections of boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from parallel_core.sharding import Box


@dataclass(frozen=True)
class Copy:
    """A copy between shards of two layouts: target_shard[target] = source_shard[source]."""

    source: tuple[slice, ...]
    target: tuple[slice, ...]
    size: int
    """Number of elements copied."""


def overlap(source: Box, target: Box) -> Copy | None:
    """The copy of the elements that two boxes share; None if they share none."""
    starts = [max(pair) for pair in zip(source.start, target.start, strict=True)]
    stops = [min(s, t) for s, t in zip(_stop(source), _stop(target), strict=True)]
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return None
    size = prod(stop - start for start, stop in zip(starts, stops, strict=True))
    return Copy(_inside(source, starts, stops), _inside(target, starts, stops), size)


def _stop(box: Box) -> list[int]:
    return [start + length for start, length in zip(box.start, box.shape, strict=True)]


def _inside(box: Box, starts: list[int], stops: list[int]) -> tuple[slice, ...]:
    """Slices of the shard that holds `box` for the global indices [starts, stops)."""
    offsets = [at - start for at, start in zip(box.at, box.start, strict=True)]
    return tuple(slice(a + offset, b + offset) for a, b, offset in zip(starts, stops, offsets, strict=True))


def cover_problem(shape: tuple[int, ...], boxes: Sequence[Box]) -> str | None:
    """A clause saying that one of `boxes` does not lie in an array of `shape` or is at a negative place (`at`) of its
    shard, or that they have more or fewer elements than the array or two overlap; None if they cover it exactly
    once."""
    for box in boxes:
        lengths = {len(box.start), len(box.shape), len(box.at), len(shape)}
        inside = len(lengths) == 1 and all(
            a >= 0 and n >= 0 and a + n <= m for a, n, m in zip(box.start, box.shape, shape, strict=True)
        )
        if not inside or min((*box.at, 0)) < 0:
            return f"a slice from {list(box.start)} of {list(box.shape)} does not lie in {list(shape)}"
    if sum(box.size for box in boxes) != prod(shape):
        return f"slices have {sum(box.size for box in boxes)} entries, {list(shape)} has {prod(shape)}"
    twice = _first_overlap([box for box in boxes if box.size])
    return None if twice is None else f"a slice from {list(twice.start)} of {list(twice.shape)} is there twice"


def _first_overlap(boxes: list[Box]) -> Box | None:
    """A box that overlaps an earlier one, None without such; boxes are sorted along the first axis, so that few pairs
    are compared."""
    ordered = sorted(boxes, key=lambda box: box.start)
    open_boxes: list[Box] = []
    for box in ordered:
        if not box.start:
            return box if len(ordered) > 1 else None
        open_boxes = [other for other in open_boxes if other.start[0] + other.shape[0] > box.start[0]]
        if any(overlap(other, box) is not None for other in open_boxes):
            return box
        open_boxes.append(box)
    return None
