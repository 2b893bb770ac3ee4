"""Rounding of values to 8-bit types, and their largest magnitude, on the host."""

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics import float8
from parallel_core.numerics.float8 import Rounding
from pynative.kernels.host.arrays import as_float32, rows_of
from pynative.memory.rounding import widened


def quantised(x: Tensor, rounding: Rounding, scale: float | None = None) -> Tensor:
    return from_numpy(float8.quantised(widened(rows_of(x)), rounding, scale).reshape(x.shape))


def largest_magnitude(x: Tensor) -> float:
    return float(np.abs(as_float32(x)).max(initial=0))
