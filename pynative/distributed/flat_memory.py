"""One piece of memory, many tensors that view it."""

import mindspore as ms
import numpy as np
from mindspore import Tensor


class FlatMemory:
    """`size` zeros of float32 with views of any piece.

    On a CPU numpy owns the memory, because a MindSpore view of a CPU tensor cannot be written to; every view shares it
    with numpy and with the other views. Elsewhere it is a device tensor and its views (not run on hardware).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory: np.ndarray | Tensor
        if ms.get_context("device_target") == "CPU":
            self._memory = np.zeros(size, np.float32)
        else:
            self._memory = ms.mint.zeros(size, dtype=ms.float32)

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start`."""
        stop = start + int(np.prod(shape))
        if isinstance(self._memory, np.ndarray):
            return Tensor.from_numpy(self._memory[start:stop].reshape(shape))
        return self._memory[start:stop].view(shape)

    def whole(self) -> Tensor:
        """Everything as one vector."""
        return self.view(0, (self.size,))
