"""A shard as boxes of the whole array, so that moving from one layout to another is intersecting boxes."""

from dataclasses import dataclass
from math import prod

from parallel_core.sharding import ShardSpec


@dataclass(frozen=True)
class Piece:
    """The box [start, start + shape) of the global array lies at index `at` of a shard; one entry for each axis."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    at: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Copy:
    """shard of the one layout[source] -> shard of the other[target]."""

    source: tuple[slice, ...]
    target: tuple[slice, ...]
    size: int
    """Elements."""


def pieces(spec: ShardSpec, rank: int, size: int) -> list[Piece]:
    """The boxes of which `rank`'s shard in a tensor-parallel group of `size` is made."""
    origin = (0,) * len(spec.shape)
    if spec.axis is None:
        return [Piece(origin, spec.shape, origin)]
    boxes, at = [], 0
    for start, stop in spec.ranges(rank, size):
        along = spec.axis
        shape = (*spec.shape[:along], stop - start, *spec.shape[along + 1 :])
        boxes.append(Piece(_with(origin, along, start), shape, _with(origin, along, at)))
        at += stop - start
    return boxes


def overlap(source: Piece, target: Piece) -> Copy | None:
    """What `target` takes from `source`; None if they share nothing."""
    starts = [max(pair) for pair in zip(source.start, target.start, strict=True)]
    stops = [min(s, t) for s, t in zip(_stop(source), _stop(target), strict=True)]
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return None
    size = prod(stop - start for start, stop in zip(starts, stops, strict=True))
    return Copy(_inside(source, starts, stops), _inside(target, starts, stops), size)


def _with(index: tuple[int, ...], axis: int, value: int) -> tuple[int, ...]:
    return (*index[:axis], value, *index[axis + 1 :])


def _stop(piece: Piece) -> list[int]:
    return [start + length for start, length in zip(piece.start, piece.shape, strict=True)]


def _inside(piece: Piece, starts: list[int], stops: list[int]) -> tuple[slice, ...]:
    """A global box as indices of the shard that holds `piece`."""
    offsets = [at - start for at, start in zip(piece.at, piece.start, strict=True)]
    return tuple(slice(a + offset, b + offset) for a, b, offset in zip(starts, stops, offsets, strict=True))
