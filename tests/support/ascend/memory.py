"""Doubles of a device's memory: what is not written holds NaN, and views can be written to.

In-place arithmetic and views of MindSpore's CPU tensors don't do what a device's do (docs/mindspore.md): numpy owns the
memory here, and each view is a tensor over its part of it.
"""

from collections.abc import Sequence

import mindspore
import numpy as np
from mindspore import Tensor

from pynative.collectives.arrays import kind_of, to_tensor


def uninitialised(shape: Sequence[int], dtype: object) -> Tensor:
    """A tensor whose bytes are all 0xFF (NaN in floating-point types) or, of other types, 0x01, as memory that nobody
    has written."""
    kind = kind_of(dtype)
    byte = 0xFF if "float" in kind.name else 0x01
    array = np.full(int(np.prod(shape, dtype=np.int64)) * kind.storage.itemsize, byte, np.uint8)
    array = array.view(kind.storage).reshape(tuple(shape))
    return to_tensor(array, kind)


def empty(*size: int | Sequence[int], dtype: object = None, device: None = None, pin_memory: bool = False) -> Tensor:
    """The double of mint.empty: uninitialised memory of the device, float32 unless a dtype is given."""
    assert device is None and not pin_memory
    shape = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    return uninitialised(shape, dtype or mindspore.float32)


class View:
    """A run of device memory, which becomes a tensor of a shape by `view`."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory

    def view(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor over this memory; as Tensor.view, the number of elements stays."""
        assert int(np.prod(shape)) == self._memory.size, f"view of {self._memory.size} elements as {shape}"
        return Tensor.from_numpy(self._memory.reshape(shape))


class DeviceVector:
    """Result of mint.zeros with one size: slices of consecutive elements are views that share its memory."""

    def __init__(self, size: int, dtype: object) -> None:
        assert isinstance(size, int) and size > 0, f"a vector of {size} elements"
        self._memory = np.zeros(size, Tensor([0], dtype).asnumpy().dtype)

    def __getitem__(self, part: slice) -> View:
        assert isinstance(part, slice) and part.step is None and 0 <= part.start <= part.stop <= len(self._memory)
        return View(self._memory[part])


def zeros(size: int, *, dtype: object = None) -> DeviceVector:
    """The double of mint.zeros with one size, as flat buffers call it."""
    return DeviceVector(size, dtype)


class HostCopies:
    """Doubles Tensor.to("CPU") and Tensor.to("Ascend"): both memories are the host's here; which tensor lies on the
    host is remembered, and bytes are counted."""

    def __init__(self) -> None:
        self.copied_out = self.copied_back = 0
        self.addresses: set[int] = set()
        self._tensor_to = Tensor.to
        self._on_host: dict[int, Tensor] = {}

    def to(self, tensor: Tensor, *arguments: object, **named: object) -> Tensor:
        """Stand in for Tensor.to: copy, count, and fail for a tensor that lies on that side already."""
        if arguments not in (("CPU",), ("Ascend",)):
            return self._tensor_to(tensor, *arguments, **named)
        copy = Tensor.from_numpy(tensor.asnumpy().copy()) if tensor.size else tensor
        if arguments == ("CPU",):
            assert id(tensor) not in self._on_host, "it lies in host memory already"
            self._on_host[id(copy)] = copy
            self.copied_out += tensor.nbytes
            self.addresses.add(tensor.data_ptr())
        else:
            assert self._on_host.pop(id(tensor), None) is not None, "it does not lie in host memory"
            self.copied_back += tensor.nbytes
        return copy

    @property
    def bytes(self) -> int:
        """Bytes of the tensors that lie in host memory now."""
        return sum(tensor.nbytes for tensor in self._on_host.values())


REPLACED = {"empty": empty, "zeros": zeros}
"""Name in `mindspore.mint` -> its double."""
