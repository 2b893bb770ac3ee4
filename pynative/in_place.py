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
        ops.assign(target, ops.cast(source, target.dtype))


def assign_add(target: Tensor, source: Tensor) -> None:
    """target <- target + source, in the target's type."""
    if _is_out_of_reach(target):
        put(widened(source.asnumpy()), _memory(target), accumulate=True)
    else:
        ops.assign_add(target, ops.cast(source, target.dtype))


def _is_out_of_reach(target: Tensor) -> bool:
    """Whether MindSpore's own operators cannot write here."""
    is_narrow = target.dtype in (mindspore.float16, mindspore.bfloat16)
    return is_narrow and mindspore.get_context("device_target") == "CPU"


def _memory(target: Tensor) -> np.ndarray:
    array = target.asnumpy()
    assert array.ctypes.data == target.data_ptr(), "a view of another tensor, of which MindSpore gives a copy"
    return array
