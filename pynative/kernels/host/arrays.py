"""Conversion between MindSpore's tensors and the numpy arrays that host operators compute on; memory is shared both
ways."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.memory.arrays import array_of, writable
from pynative.memory.rounding import put, widened
from pynative.tape.autograd import add_weight_gradient


def array_or_none(tensor: Tensor | None) -> Array | None:
    """The tensor's memory; None of None."""
    return None if tensor is None else array_of(tensor)


def rows_of(tensor: Tensor) -> Array:
    """The tensor's memory as rows [r, columns], all leading axes counted as one."""
    return array_of(tensor).reshape(-1, tensor.shape[-1])


def as_float32(tensor: Tensor) -> Array:
    """The tensor's values as float32: its own memory when that is what it holds, else a copy."""
    return widened(array_of(tensor))


def gradient_memory(out: Tensor | None, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """The memory of a parameter's gradient of this shape: `out` when given, else new memory of this type."""
    return np.empty(shape, dtype) if out is None else writable(out).reshape(shape)


def delivered(gradient: Array, out: Tensor | None) -> Tensor:
    """The tensor over what `gradient_memory` gave."""
    return from_numpy(gradient) if out is None else out


def add_summed_gradient(parameter: Tensor, gradient: Array) -> Tensor | None:
    """`add_weight_gradient` of a float32 gradient that is computed already."""
    return add_weight_gradient(parameter, partial(_put_gradient, parameter, gradient))


def _put_gradient(parameter: Tensor, gradient: Array, out: Tensor | None, accumulate: bool) -> Tensor:
    memory = gradient_memory(out, gradient.shape, array_of(parameter).dtype)
    put(gradient, memory, accumulate)
    return delivered(memory, out)
