"""Samples of large arrays that do not depend on the layout: a recorded run keeps these.

s sequence, b rows of a micro-batch, h features.
"""

from typing import NamedTuple
from zlib import crc32

import numpy as np

from parallel_core.numerics.dtypes import Array

POINTS = 64
"""The largest number of positions, and of features, that are kept of an activation."""
ENTRIES = 1 << 16
"""The largest number of entries that are kept of a parameter."""


def spacing(size: int, most: int = POINTS) -> int:
    """The distance between two kept places, the least such that at most `most` of `size` are kept; 1 at least."""
    return max(1, -(-size // most))


def of_activation(values: Array, positions: Array, seq_length: int) -> tuple[Array, Array]:
    """The part that is kept of a rank's activation [s, b, h] at global positions [s], float32 [s', b, h'], and its
    positions [s']: every `spacing`-th global position, and every `spacing`-th feature, at most POINTS of each in the
    whole sequence."""
    kept = positions % spacing(seq_length) == 0
    return values[kept][..., :: spacing(values.shape[-1])].astype(np.float32), positions[kept]


class Sample(NamedTuple):
    """The kept entries of a parameter, its gradient or an update, with the norm and the checksum of the whole array; an
    update has the norm of these entries, and no checksum."""

    values: Array
    """Float32 vector of entries at even distances."""
    norm: float
    """Norm of the whole array; of a difference (`minus`) that of the entries alone."""
    digest: int
    """crc32 of the whole array's bytes as float32; 0: not known."""

    @classmethod
    def of(cls, whole: Array) -> "Sample":
        """The sample of a whole array: its norm and digest (crc32), and entries at even distances."""
        flat = np.ascontiguousarray(whole, np.float32).reshape(-1)
        norm = float(np.linalg.norm(flat.astype(np.float64)))
        return cls(flat[:: spacing(flat.size, ENTRIES)], norm, crc32(flat.tobytes()) or 1)

    def minus(self, other: "Sample") -> "Sample":
        """The difference of two samples; its norm is that of the kept entries, its digest not known (0)."""
        values = self.values - other.values
        return Sample(values, float(np.linalg.norm(values.astype(np.float64))), 0)
