"""Parts of a tensor as tensors of their own, on the host."""

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.memory.arrays import array_of


def chunk(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    # A copy even where a view would do: the chunk outlives the whole.
    return from_numpy(np.array(np.split(array_of(x), count, axis)[index], order="C"))


def take_columns(x: Tensor, ranges: Sequence[range]) -> Tensor:
    array = array_of(x)
    return from_numpy(np.concatenate([array[..., run.start : run.stop] for run in ranges], axis=-1))


def place_columns(x: Tensor, ranges: Sequence[range], width: int) -> Tensor:
    array = array_of(x)
    wide = np.zeros((*array.shape[:-1], width), array.dtype)
    start = 0
    for run in ranges:
        wide[..., run.start : run.stop] = array[..., start : start + len(run)]
        start += len(run)
    return from_numpy(wide)


def sequence_first(x: Tensor) -> Tensor:
    return from_numpy(np.ascontiguousarray(array_of(x).T))
