"""Rows brought into another order, and sums of rows, of MindSpore operators."""

import mindspore
import numpy as np
from mindspore import Tensor, ops

from parallel_core.numerics.dtypes import Array
from pynative.kernels.ops.elementwise import cast, widened_on_cpu


@widened_on_cpu("x")
def gather_rows(x: Tensor, sources: Array, row: tuple[int, ...]) -> Tensor:
    if not (x.size and sources.size):
        return ops.zeros((len(sources), *row), x.dtype)
    x = x.reshape(-1, *row)
    if sources.min() < 0:  # numbers of the row of zeros that is put behind
        x = ops.cat((x, ops.zeros((1, *row), x.dtype)))
        sources = np.where(sources < 0, x.shape[0] - 1, sources)
    return ops.gather(x, Tensor.from_numpy(np.ascontiguousarray(sources, np.int32)), 0)


@widened_on_cpu("x")
def sum_rows(x: Tensor, places: Array, shape: tuple[int, ...]) -> Tensor:
    count, addends = places.shape
    row = tuple(x.shape[1:])
    if addends == 1:
        return gather_rows(x, places[:, 0], row).reshape(shape)
    parts = gather_rows(x, places.T.reshape(-1), row).reshape(addends, count, *row)
    return cast(cast(parts, mindspore.float32).sum(axis=0), x.dtype).reshape(shape)
