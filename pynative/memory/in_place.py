"""Writing into a tensor's own memory, whichever of float32, float16 and bfloat16 the types of target and source are.

MindSpore's in-place methods, such as `add_`, silently do nothing on a CPU. Its `assign` and `assign_add` work in
float32; in 16 bits a CPU refuses them or, adding float16, does nothing. So numpy writes into floats on a CPU, and into
views of a `FlatMemory` that lies in the host's memory: in a third of the time, and 16-bit values are rounded once.
"""

import mindspore
from mindspore import Tensor, ops

from parallel_core.numerics.dtypes import Array
from pynative.memory.arrays import values_of, writable
from pynative.memory.rounding import put, widened


def assign(target: Tensor, source: Tensor) -> None:
    """Write `source` into `target`'s memory, rounded to its type. Both are float32, float16 or bfloat16, of one shape;
    raises ValueError for different shapes."""
    memory = _host_memory(target)
    if memory is None:
        ops.assign(target, _as(_sent(source), target))
    else:
        _put(source, memory, accumulate=False)


def assign_add(target: Tensor, source: Tensor) -> None:
    """Add `source` to `target` in its memory; both are float32, float16 or bfloat16, of one shape. The sum is rounded
    to the target's type; in a device's memory `source` is rounded to it first."""
    memory = _host_memory(target)
    if memory is None:
        ops.assign_add(target, _as(source, target))
    else:
        _put(source, memory, accumulate=True)


def _put(source: Tensor, memory: Array, accumulate: bool) -> None:
    values = values_of(source)
    if values.shape != memory.shape:
        raise ValueError(f"a tensor of shape {values.shape} cannot be written into one of shape {memory.shape}")
    put(widened(values), memory, accumulate)


def is_on_host(tensor: Tensor) -> bool:
    """Whether a tensor of a `FlatMemory` lies in the host's memory while MindSpore computes on another device."""
    return getattr(tensor, "host_memory", None) is not None and mindspore.get_context("device_target") != "CPU"


def _sent(source: Tensor) -> Tensor:
    """A tensor that an operator may move to its device: the source, or for one that stays on the host a new tensor over
    the same memory, because MindSpore reads and writes a tensor on the device after an operator took it."""
    return Tensor.from_numpy(source.host_memory) if is_on_host(source) else source


def _as(source: Tensor, target: Tensor) -> Tensor:
    """The source cast to the target's type; the source itself if it has that type, since an idle cast takes time,
    too."""
    return source if source.dtype is target.dtype else ops.cast(source, target.dtype)


def _host_memory(target: Tensor) -> Array | None:
    """The target's memory as an array, for numpy to write; None where MindSpore's own operators write it: on a device,
    but for host memory of a `FlatMemory`, and in types that are no floats."""
    known: Array | None = getattr(target, "host_memory", None)
    is_float = any(target.dtype is kind for kind in (mindspore.float32, mindspore.float16, mindspore.bfloat16))
    if known is not None or not is_float or mindspore.get_context("device_target") != "CPU":
        return known
    return writable(target)
