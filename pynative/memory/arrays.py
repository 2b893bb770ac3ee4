"""The memory of a tensor of the host as a numpy array."""

import ctypes
import sys
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative.dtypes import BFLOAT16
from pynative.onednn.library import address_of

_TYPES = {
    id(getattr(mindspore, name)): np.dtype(getattr(np, name))
    for name in ("float32", "float16", "float64", "int32", "int64", "bool_")
} | {id(mindspore.bfloat16): BFLOAT16}
"""Kinds by the identity of MindSpore's types, because hashing one of them takes longer than all the rest of
`array_of`."""

_memory_at = (ctypes.c_char * sys.maxsize).from_address
"""Memory from an address on; how much of it is an array's, the array's shape says."""


def array_type(dtype: mindspore.Type) -> np.dtype[Any]:
    """numpy's name of a type."""
    return _TYPES[id(dtype)]


def array_of(tensor: Tensor) -> Array:
    """The tensor's memory, to be read: of a view with gaps MindSpore gives a copy. `asnumpy` takes four times as long,
    and operators are given many tensors."""
    dtype = _TYPES.get(id(tensor.dtype))
    if dtype is None or not tensor.is_contiguous() or not tensor.size:
        return tensor.asnumpy()
    memory: Any = _memory_at(tensor.data_ptr())
    memory.owner = tensor
    return np.ndarray(tensor.shape, dtype, memory)


def writable(tensor: Tensor) -> Array:
    """The tensor's own memory, to be written. Raises ValueError for a view whose memory is out of reach."""
    array = array_of(tensor)
    if address_of(array) != tensor.data_ptr() and tensor.size:
        raise ValueError(
            f"a tensor of shape {tensor.shape} to be written is a view of another tensor; pass one of its own"
        )
    return array
