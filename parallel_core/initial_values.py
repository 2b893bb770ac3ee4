"""Initial values that don't depend on the layout (DESIGN, decision 3).

Element i of the parameter called `name` is a function of (seed, name, i): word i of a Philox stream (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", 2011) keyed by seed and name. A shard computes just its own elements.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from parallel_core.sharding import ShardSpec

_WORDS_PER_COUNTER = 4
_BLOCK = 1 << 18  # elements computed at a time: the temporaries stay in the cache


def _stream(seed: int, name: str, first_word: int) -> tuple[np.random.Philox, int]:
    """The generator at the counter that holds `first_word`, and how many of its words come before."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
    generator = np.random.Philox(key=key)
    counter, skip = divmod(first_word, _WORDS_PER_COUNTER)
    generator.advance(counter)
    return generator, skip


def standard_normal(seed: int, name: str, start: int, stop: int) -> np.ndarray:
    """Elements start..stop-1 of a parameter's standard normal stream, float32, by the Box-Muller transform."""
    values = np.empty(stop - start, np.float32)
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop)
        generator, skip = _stream(seed, name, first)
        words = generator.random_raw(skip + last - first)[skip:]
        # Upper half of a word: a uniform in (0, 1], lower half: an angle. float64 keeps the tail right to 6.6 sigma.
        radius = np.sqrt(-2.0 * np.log(((words >> np.uint64(32)) + 1.0) * 2.0**-32))
        angle = (words & np.uint64(0xFFFFFFFF)) * (2.0 * np.pi * 2.0**-32)
        values[first - start : last - start] = radius * np.cos(angle)
    return values


@dataclass(frozen=True)
class Normal:
    """Normal values of mean 0 and standard deviation `std`."""

    std: float

    def shard(self, seed: int, spec: ShardSpec, rank: int, size: int) -> np.ndarray:
        """This rank's piece, float32; the same numbers whatever the group's size."""
        row = int(np.prod(spec.shape[1:]))
        if spec.axis == 0:
            pieces = [standard_normal(seed, spec.name, a * row, b * row) for a, b in spec.ranges(rank, size)]
            return (np.concatenate(pieces) * np.float32(self.std)).reshape(spec.local_shape(size))
        whole = standard_normal(seed, spec.name, 0, int(np.prod(spec.shape))).reshape(spec.shape)
        return np.ascontiguousarray(spec.cut(whole, rank, size)) * np.float32(self.std)


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float

    def shard(self, seed: int, spec: ShardSpec, rank: int, size: int) -> np.ndarray:
        """This rank's piece, float32."""
        return np.full(spec.local_shape(size), self.value, np.float32)


def by_name(method: "Normal | Constant | str", std: float) -> "Normal | Constant":
    """An initialiser from what a script passes: an object of this module, or "normal", "zeros", "ones"."""
    table: dict[str, Normal | Constant] = {"normal": Normal(std), "zeros": Constant(0.0), "ones": Constant(1.0)}
    if isinstance(method, str):
        if method not in table:
            raise ValueError(f"init_method {method!r}: one of {', '.join(table)}, or Normal(std), Constant(value)")
        return table[method]
    return method
