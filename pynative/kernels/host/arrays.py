"""Between MindSpore's tensors and the numpy arrays that host operators compute on; memory is shared both ways."""

import ctypes
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import add_weight_gradient
from pynative.rounding import BFLOAT16, put, widened

_TYPES = {
    id(getattr(mindspore, name)): np.dtype(getattr(np, name))
    for name in ("float32", "float16", "float64", "int32", "int64", "bool_")
} | {id(mindspore.bfloat16): BFLOAT16}
"""By the identity of MindSpore's types, because hashing one of them takes longer than all the rest of `array_of`."""

_memory_at = (ctypes.c_char * sys.maxsize).from_address
"""Memory from an address on; how much of it is an array's, the array's shape says."""


def array_type(dtype: mindspore.Type) -> np.dtype:
    """numpy's name of a type."""
    return _TYPES[id(dtype)]


def array_of(tensor: Tensor) -> np.ndarray:
    """The tensor's memory. `asnumpy` takes four times as long, and operators are given many tensors."""
    dtype = _TYPES.get(id(tensor.dtype))
    if dtype is None or not tensor.is_contiguous() or not tensor.size:
        return tensor.asnumpy()
    memory: Any = _memory_at(tensor.data_ptr())
    memory.owner = tensor
    return np.ndarray(tensor.shape, dtype, memory)


def array_or_none(tensor: Tensor | None) -> np.ndarray | None:
    """The tensor's memory; None of None."""
    return None if tensor is None else array_of(tensor)


def rows_of(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as rows [r, columns], all leading axes counted as one."""
    return array_of(tensor).reshape(-1, tensor.shape[-1])


def as_float32(tensor: Tensor) -> np.ndarray:
    """The tensor's values as float32: its own memory when that is what it holds, else a copy."""
    return widened(array_of(tensor))


def gradient_memory(out: Tensor | None, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Where a parameter's gradient of this shape goes: into `out` when given, else into new memory of this type."""
    return np.empty(shape, dtype) if out is None else array_of(out).reshape(shape)


def delivered(gradient: np.ndarray, out: Tensor | None) -> Tensor:
    """The tensor over what `gradient_memory` gave."""
    return from_numpy(gradient) if out is None else out


def add_summed_gradient(parameter: Tensor, gradient: np.ndarray) -> Tensor | None:
    """`add_weight_gradient` of a float32 gradient that is computed already."""
    return add_weight_gradient(parameter, partial(_put_gradient, parameter, gradient))


def _put_gradient(parameter: Tensor, gradient: np.ndarray, out: Tensor | None, accumulate: bool) -> Tensor:
    memory = gradient_memory(out, gradient.shape, array_of(parameter).dtype)
    put(gradient, memory, accumulate)
    return delivered(memory, out)
