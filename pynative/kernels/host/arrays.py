"""Between MindSpore tensors and the numpy arrays that host kernels compute on: the one place that looks at types.

Kernels compute in float32. A float32 tensor's memory is shared both ways at no cost; 16-bit tensors are widened on the
way in and rounded to nearest even on the way out, which is also what a device with float32 accumulation does.
"""

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


def destination(out: Tensor | None, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 memory for a result of `shape`: that of `out` when it is a float32 tensor, else new."""
    if out is not None:
        memory = out.asnumpy()
        if memory.dtype == np.float32:
            return memory.reshape(shape)
    return np.empty(shape, np.float32)


def delivered(result: np.ndarray, out: Tensor | None, like: Tensor) -> Tensor:
    """`out` holding `result` (written there already by `destination`, or rounded now); without `out` a new tensor."""
    if out is None:
        return tensor_like(result, like)
    memory = out.asnumpy()
    if not np.shares_memory(memory, result):
        memory[...] = result.reshape(memory.shape)
    return out


def add_summed_gradient(parameter: Tensor, gradient: np.ndarray) -> Tensor | None:
    """`add_weight_gradient` of a gradient that is computed already."""

    def compute(out: Tensor | None) -> Tensor:
        memory = destination(out, gradient.shape)
        memory[...] = gradient
        return delivered(memory, out, parameter)

    return add_weight_gradient(parameter, compute)
