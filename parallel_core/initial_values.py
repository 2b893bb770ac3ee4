"""Initial values that don't depend on the layout.

Random element i of the parameter called `name` is a function of (seed, name, i): of word i of a Philox stream (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) keyed by seed and name. A shard computes only the rows of
the whole parameter that it has a part of.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np

from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import Box, Place, ShardSpec

_WORDS_PER_COUNTER = 4
_BLOCK = 1 << 18  # elements computed at a time, few enough for the cache


def _stream(seed: int, name: str, first_word: int) -> tuple[np.random.Philox, int]:
    """(generator at the counter that holds word `first_word`, number of that counter's words to skip)."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
    generator = np.random.Philox(key=key)
    counter, skip = divmod(first_word, _WORDS_PER_COUNTER)
    generator.advance(counter)
    return generator, skip


def standard_normal(seed: int, name: str, start: int, stop: int) -> Array:
    """Elements start..stop-1 of a parameter's standard normal stream, float32, by the Box-Muller transform."""
    values = np.empty(stop - start, np.float32)
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        generator, skip = _stream(seed, name, first)
        words = generator.random_raw(skip + last - first)[skip:]
        # Box-Muller: a word's upper half is a uniform in (0, 1], its lower half an angle. float64 covers 6.6 sigma.
        radius = np.sqrt(-2.0 * np.log(((words >> np.uint64(32)) + 1.0) * 2.0**-32))
        angle = (words & np.uint64(0xFFFFFFFF)) * (2.0 * np.pi * 2.0**-32)
        values[first - start : last - start] = radius * np.cos(angle)
    return values


def standard_uniform(seed: int, name: str, start: int, stop: int) -> Array:
    """Elements start..stop-1 of a parameter's stream of uniform numbers in (0, 1], float64."""
    generator, skip = _stream(seed, name, start)
    return (generator.random_raw(skip + stop - start)[skip:] + 0.5) * 2.0**-64


def _box_of(stream: Callable[[int, str, int, int], Array], seed: int, spec: ShardSpec, box: Box) -> Array:
    """The values of a parameter's stream in a box of its global array; the stream is computed for the box's rows
    only."""
    if not spec.shape:
        return stream(seed, spec.name, 0, 1).reshape(())
    first, rows, row = box.start[0], box.shape[0], prod(spec.shape[1:])
    values = stream(seed, spec.name, first * row, (first + rows) * row).reshape(rows, *spec.shape[1:])
    others = (slice(None), *box.in_whole[1:])
    return values[others]


class _ByBox(ABC):
    """Initial values that are computed for one box of the global array at a time."""

    def shard(self, seed: int, place: Place) -> Array:
        """The values of a rank's shard, float32: the same numbers however the parameter is cut, zeros in padding."""
        values = np.zeros(place.shape, np.float32)
        for box in place.boxes:
            values[box.in_shard] = self._of_box(seed, place.spec, box)
        return values

    @abstractmethod
    def _of_box(self, seed: int, spec: ShardSpec, box: Box) -> Array:
        """The values of one box of the global array, in the box's shape."""


@dataclass(frozen=True)
class Normal(_ByBox):
    """Normal values of mean 0 and standard deviation `std`."""

    std: float

    def _of_box(self, seed: int, spec: ShardSpec, box: Box) -> Array:
        drawn = _box_of(standard_normal, seed, spec, box)
        drawn *= np.float32(self.std)
        return drawn


@dataclass(frozen=True)
class Constant(_ByBox):
    """The value `value` for every element."""

    value: float

    def _of_box(self, seed: int, spec: ShardSpec, box: Box) -> Array:
        return np.full(box.shape, self.value, np.float32)


FORMS: dict[str, Callable[[Array], Array]] = {
    "": lambda values: values,
    "log": np.log,
    "softplus^-1 exp": lambda logs: np.exp(logs) + np.log(-np.expm1(-np.exp(logs))),
}
"""Name -> function of the drawn values; those of "softplus^-1 exp" are logarithms of numbers whose inverse softplus is
taken."""


@dataclass(frozen=True)
class Uniform(_ByBox):
    """Values drawn uniformly between `low` and `high`, then transformed by the function of `FORMS` called `form`."""

    low: float
    high: float
    form: str = ""

    def _of_box(self, seed: int, spec: ShardSpec, box: Box) -> Array:
        return FORMS[self.form](self.low + (self.high - self.low) * _box_of(standard_uniform, seed, spec, box))


@dataclass(frozen=True)
class InTurns(_ByBox):
    """Whole numbers below `count` in a matrix: row r has r, r + 1, ..., each modulo `count`."""

    count: int

    def _of_box(self, seed: int, spec: ShardSpec, box: Box) -> Array:
        rows, columns = (np.arange(start, start + size) for start, size in zip(box.start, box.shape, strict=True))
        return (rows[:, None] + columns) % self.count


AnyInitial: TypeAlias = Normal | Constant | Uniform | InTurns


def by_name(method: "Normal | Constant | str", std: float) -> "Normal | Constant":
    """The initialiser that a script passes as `method`: an object, which is returned, or "normal" (mean 0, standard
    deviation `std`), "zeros", "ones". Raises ValueError for another name."""
    table: dict[str, Normal | Constant] = {"normal": Normal(std), "zeros": Constant(0.0), "ones": Constant(1.0)}
    if isinstance(method, str):
        if method not in table:
            raise ValueError(f"init_method {method!r}: one of {', '.join(table)}, or Normal(std), Constant(value)")
        return table[method]
    return method
