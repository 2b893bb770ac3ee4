"""One stretch of memory, many tensors that view it."""

import mindspore as ms
import numpy as np
from mindspore import Tensor


class FlatMemory:
    """`size` zeros of a type, with views of any part.

    On a CPU numpy owns the memory, because a MindSpore view of a CPU tensor cannot be written to; every view shares it
    with numpy and with the other views. Elsewhere it is a device tensor and its views (not run on hardware).
    """

    def __init__(self, size: int, dtype: str = "float32") -> None:
        self.size = size
        self._memory: np.ndarray | Tensor
        if ms.get_context("device_target") == "CPU":
            self._memory = np.zeros(size, Tensor([0], getattr(ms, dtype)).asnumpy().dtype)
        else:
            self._memory = ms.mint.zeros(size, dtype=getattr(ms, dtype))

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start`."""
        stop = start + int(np.prod(shape))
        if isinstance(self._memory, np.ndarray):
            return Tensor.from_numpy(self._memory[start:stop].reshape(shape))
        return self._memory[start:stop].view(shape)

    def span(self, start: int, stop: int) -> Tensor:
        """Elements start..stop-1 as a vector."""
        return self.view(start, (stop - start,))
