"""Between MindSpore tensors and the numpy arrays that host kernels compute on: the one place that looks at types.

Kernels compute in float32. A float32 tensor's memory is shared both ways at no cost; 16-bit tensors are widened on the
way in and rounded to nearest even on the way out, which is also what a device with float32 accumulation does.
"""

from collections.abc import Callable, Sequence
from functools import partial

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import add_weight_gradient

_BFLOAT16 = np.dtype(mindspore.dtype_to_nptype(mindspore.bfloat16))


def as_float32(tensor: Tensor) -> np.ndarray:
    """The values of `tensor` as float32: its own memory when that is what it holds, else a copy."""
    array = tensor.asnumpy()
    if array.dtype == _BFLOAT16:  # the registered cast takes 15 ns an element
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32, copy=False)


def tensor_like(array: np.ndarray, like: Tensor) -> Tensor:
    """A tensor of the array's values in the type of `like`, sharing the memory when no rounding is needed."""
    return from_numpy(array.astype(mindspore.dtype_to_nptype(like.dtype), copy=False))


Writer = Callable[[np.ndarray, bool], None]
"""(memory, accumulate): writes a result to the memory, or adds it to what the memory holds."""


def deliver(write: Writer, like: Tensor, shape: Sequence[int], out: Tensor | None, accumulate: bool) -> Tensor:
    """What `write` writes to float32 memory of this shape, or adds to what the memory holds.

    Into `out` when given: its own memory if that is float32, else rounded to its type. Else a new tensor of the type of
    `like`.
    """
    if out is None:
        memory = np.empty(shape, np.float32)
        write(memory, False)
        return tensor_like(memory, like)
    memory = out.asnumpy()
    if memory.dtype == np.float32:
        write(memory.reshape(shape), accumulate)
        return out
    wide = as_float32(out).reshape(shape) if accumulate else np.empty(shape, np.float32)
    write(wide, accumulate)
    memory[...] = wide.reshape(memory.shape)
    return out


def _put(values: np.ndarray, memory: np.ndarray, accumulate: bool) -> None:
    if accumulate:
        memory += values
    else:
        memory[...] = values


def add_summed_gradient(parameter: Tensor, gradient: np.ndarray) -> Tensor | None:
    """`add_weight_gradient` of a gradient that is computed already."""

    def compute(out: Tensor | None, accumulate: bool) -> Tensor:
        return deliver(partial(_put, gradient), parameter, gradient.shape, out, accumulate)

    return add_weight_gradient(parameter, compute)
