"""From one layout to another: shards are boxes of the whole array, so that moving data is intersecting boxes."""

from dataclasses import dataclass
from math import prod

from parallel_core.sharding import Box


@dataclass(frozen=True)
class Copy:
    """shard of the one layout[source] -> shard of the other[target]."""

    source: tuple[slice, ...]
    target: tuple[slice, ...]
    size: int
    """Elements."""


def overlap(source: Box, target: Box) -> Copy | None:
    """What `target` takes from `source`; None if they share nothing."""
    starts = [max(pair) for pair in zip(source.start, target.start, strict=True)]
    stops = [min(s, t) for s, t in zip(_stop(source), _stop(target), strict=True)]
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return None
    size = prod(stop - start for start, stop in zip(starts, stops, strict=True))
    return Copy(_inside(source, starts, stops), _inside(target, starts, stops), size)


def _stop(box: Box) -> list[int]:
    return [start + length for start, length in zip(box.start, box.shape, strict=True)]


def _inside(box: Box, starts: list[int], stops: list[int]) -> tuple[slice, ...]:
    """A global box as indices of the shard that holds `box`."""
    offsets = [at - start for at, start in zip(box.at, box.start, strict=True)]
    return tuple(slice(a + offset, b + offset) for a, b, offset in zip(starts, stops, offsets, strict=True))
