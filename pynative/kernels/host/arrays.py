"""Conversion between MindSpore's tensors and the numpy arrays that host operators compute on, in shared memory where
that is possible."""

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
    """The tensor's values as `array_of` gives them; None for None."""
    return None if tensor is None else array_of(tensor)


def rows_of(tensor: Tensor) -> Array:
    """The values of a tensor, as `array_of` gives them, in rows [r, columns], all leading axes counted as one; the last
    axis, which there must be, has at least one element."""
    return array_of(tensor).reshape(-1, tensor.shape[-1])


def as_float32(tensor: Tensor) -> Array:
    """The tensor's values as a float32 array: `array_of` where that is its type, else a copy."""
    return widened(array_of(tensor))


def gradient_memory(out: Tensor | None, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An array of this shape for the gradient of a parameter: the memory of `out` when given, else new memory of this
    type, not initialised. Raises ValueError for an `out` that is a view with gaps."""
    return np.empty(shape, dtype) if out is None else writable(out).reshape(shape)


def delivered(gradient: Array, out: Tensor | None) -> Tensor:
    """The tensor of an array that `gradient_memory` gave for this `out`: `out` itself when given."""
    return from_numpy(gradient) if out is None else out


def add_summed_gradient(parameter: Tensor, gradient: Array) -> Tensor | None:
    """Put a parameter's gradient, float32 and already computed, where `autograd.add_weight_gradient` does. Returns what
    that returns: None, or the gradient in the parameter's type if the parameter is trained and in no buffer. Raises
    ValueError as it does."""
    return add_weight_gradient(parameter, partial(_put_gradient, parameter, gradient))


def _put_gradient(parameter: Tensor, gradient: Array, out: Tensor | None, accumulate: bool) -> Tensor:
    memory = gradient_memory(out, gradient.shape, array_of(parameter).dtype)
    put(gradient, memory, accumulate)
    return delivered(memory, out)
