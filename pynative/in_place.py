"""Writing into a tensor's own memory, whatever its type and that of what is written.

MindSpore's in-place methods silently do nothing on a CPU. `assign` and `assign_add` do what they say in float32; in 16
bits a CPU refuses them or, adding float16, does nothing: there numpy writes into the memory, rounding once.
"""

import mindspore
import numpy as np
from mindspore import Tensor, ops

from pynative.rounding import put, widened


def assign(target: Tensor, source: Tensor) -> None:
    """target <- source, in the target's type."""
    if _is_out_of_reach(target):
        put(widened(source.asnumpy()), _memory(target), accumulate=False)
    else:
        ops.assign(target, _as(source, target))


def assign_add(target: Tensor, source: Tensor) -> None:
    """target <- target + source, in the target's type."""
    if _is_out_of_reach(target):
        put(widened(source.asnumpy()), _memory(target), accumulate=True)
    else:
        ops.assign_add(target, _as(source, target))


def _as(source: Tensor, target: Tensor) -> Tensor:
    """The source in the target's type; a cast that does nothing takes a third of an assignment's time."""
    return source if source.dtype is target.dtype else ops.cast(source, target.dtype)


def _is_out_of_reach(target: Tensor) -> bool:
    """Whether MindSpore's own operators cannot write here; nor can a device's into the host's memory."""
    if getattr(target, "is_on_host", False):
        return True
    dtype = target.dtype
    is_narrow = dtype is mindspore.float16 or dtype is mindspore.bfloat16
    return is_narrow and mindspore.get_context("device_target") == "CPU"


def _memory(target: Tensor) -> np.ndarray:
    array = target.asnumpy()
    assert array.ctypes.data == target.data_ptr(), "a view of another tensor, of which MindSpore gives a copy"
    return array
