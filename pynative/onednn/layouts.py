"""oneDNN's layouts (type, shape, strides) of numpy arrays."""

from functools import lru_cache
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.dtypes import BFLOAT16
from pynative.onednn.library import Layout, Type, dense, layout

TYPES = {np.dtype(np.float32): Type.FLOAT32, np.dtype(np.float16): Type.FLOAT16, BFLOAT16: Type.BFLOAT16}

KEPT = 2048
"""The number of layouts that each function here caches, those used last: a training step has some dozens, text of
growing length new ones for every token."""


def layout_of(array: Array) -> Layout:
    """The oneDNN Layout of an array: type, shape and strides. Raises KeyError for a type beside float32, float16 and
    bfloat16, OneDnnError for more than 12 axes and for strides that oneDNN refuses, such as negative ones."""
    return _layout(array.dtype, array.shape, array.strides)


@lru_cache(KEPT)
def _layout(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    return layout(TYPES[dtype], shape, tuple(stride // dtype.itemsize for stride in strides))


def row_layout(vector: Array) -> Layout:
    """The layout of a contiguous vector [c] as a matrix [1, c], to be broadcast over rows. Raises KeyError for a type
    beside float32, float16 and bfloat16."""
    return _row_layout(vector.dtype, len(vector))


@lru_cache(KEPT)
def _row_layout(dtype: np.dtype[Any], columns: int) -> Layout:
    return dense(TYPES[dtype], 1, columns)
