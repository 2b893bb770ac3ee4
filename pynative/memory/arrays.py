"""The memory of host tensors as numpy arrays, to be read or written."""

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
"""numpy's types by the `id` of MindSpore's, because hashing one of these takes longer than all the rest of
`array_of`."""

_memory_at = (ctypes.c_char * sys.maxsize).from_address
"""ctypes' view of memory from an address on; the array made over it bounds its size."""


def array_type(dtype: mindspore.Type) -> np.dtype[Any]:
    """numpy's type for MindSpore's. Raises KeyError for one beside bool, int32, int64 and the floating-point types of
    16, 32 and 64 bits."""
    if id(dtype) not in _TYPES:
        raise KeyError(f"{dtype} is none of bool, int32, int64 and the floats of 16, 32 and 64 bits")
    return _TYPES[id(dtype)]


def array_of(tensor: Tensor) -> Array:
    """The values of a host tensor as an array over its own memory, to be read; `writable` gives one to be written. A
    tensor that is not contiguous or is empty, and one of a type that `array_type` does not know, go to `asnumpy`, which
    takes four times as long, and may copy."""
    dtype = _TYPES.get(id(tensor.dtype))
    if dtype is None or not tensor.is_contiguous() or not tensor.size:
        return tensor.asnumpy()
    memory: Any = _memory_at(tensor.data_ptr())
    memory.owner = tensor
    return np.ndarray(tensor.shape, dtype, memory)


def values_of(tensor: Tensor) -> Array:
    """The values of a tensor as an array, to be read: as `array_of` in the host's memory, else a copy."""
    return array_of(tensor) if tensor.device == "CPU" else tensor.asnumpy()


def writable(tensor: Tensor) -> Array:
    """An array over the tensor's own memory, to be written. Raises ValueError where MindSpore gives only a copy,
    as of a tensor that is not contiguous."""
    array = array_of(tensor)
    if address_of(array) != tensor.data_ptr() and tensor.size:
        raise ValueError(
            f"a tensor of shape {tensor.shape} to be written is a view of another tensor; pass one of its own"
        )
    return array
