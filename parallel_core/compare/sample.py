"""Parts of large arrays that do not depend on a layout: a recorded run keeps these.

s sequence, b rows of a micro-batch, h features.
"""

from typing import NamedTuple
from zlib import crc32

import numpy as np

from parallel_core.numerics.dtypes import Array

POINTS = 64
"""Positions, and features, of an activation that are kept at most."""
ENTRIES = 1 << 16
"""Most entries that are recorded of a parameter."""


def spacing(size: int, most: int = POINTS) -> int:
    """From one place that is kept to the next."""
    return max(1, -(-size // most))


def of_activation(values: Array, positions: Array, seq_length: int) -> tuple[Array, Array]:
    """[s, b, h] of a rank at global positions [s] -> what is kept of it, float32, and the positions of that."""
    kept = positions % spacing(seq_length) == 0
    return values[kept][..., :: spacing(values.shape[-1])].astype(np.float32), positions[kept]


class Sample(NamedTuple):
    """The recorded part of a parameter, its gradient, or an update."""

    values: Array
    """Float32, entries at even distances."""
    norm: float
    """Norm of the whole array."""
    digest: int
    """Digest of the whole array's bytes as float32; 0: not known."""

    @classmethod
    def of(cls, whole: Array) -> "Sample":
        """The sample of a whole array."""
        flat = np.ascontiguousarray(whole, np.float32).reshape(-1)
        norm = float(np.linalg.norm(flat.astype(np.float64)))
        return cls(flat[:: spacing(flat.size, ENTRIES)], norm, crc32(flat.tobytes()) or 1)

    def minus(self, other: "Sample") -> "Sample":
        """The difference, as far as entries tell: its norm is that of the entries."""
        values = self.values - other.values
        return Sample(values, float(np.linalg.norm(values.astype(np.float64))), 0)
