"""Numpy's arrays as oneDNN sees them."""

import numpy as np

from pynative.kernels.host.engine.onednn.library import Layout, Type
from pynative.kernels.host.rounding import BFLOAT16

Array = np.ndarray

TYPES = {np.dtype(np.float32): Type.FLOAT32, np.dtype(np.float16): Type.FLOAT16, BFLOAT16: Type.BFLOAT16}


def layout_of(array: Array) -> Layout:
    """Type, shape and strides of an array."""
    size = array.itemsize
    return Layout((TYPES[array.dtype], array.shape, tuple(stride // size for stride in array.strides)))


def address_of(array: Array) -> int:
    """Where its first entry is."""
    return array.__array_interface__["data"][0]


def row_layout(vector: Array) -> Layout:
    """A vector [c] as a matrix of one row, to be broadcast."""
    return Layout.dense(TYPES[vector.dtype], 1, len(vector))
