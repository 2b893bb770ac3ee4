"""Sums of arrays, and of an array's rows."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.memory.rounding import fill, float32_for, widened


def add(x: Array, bias: Array | None, mask: Array | None, residual: Array | None, out: Array) -> None:
    part, result = widened(x), float32_for(out)
    if bias is not None:
        part = np.add(part, widened(bias), out=result)
    if mask is not None:
        part = np.multiply(part, mask, out=result)
    if residual is not None:
        part = np.add(part, widened(residual), out=result)
    fill(out, part)


def sum_rows(x: Array, out: Array) -> None:
    np.matmul(np.ones(len(x), np.float32), widened(x), out=out)
