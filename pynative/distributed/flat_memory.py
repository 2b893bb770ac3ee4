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
        self._on_host = ms.get_context("device_target") == "CPU"
        self._array = np.zeros(size, np.float32) if self._on_host else None
        self._device = None if self._on_host else ms.mint.zeros(size, dtype=ms.float32)

    def view(self, start: int, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that begins at element `start`."""
        stop = start + int(np.prod(shape))
        if self._on_host:
            return Tensor.from_numpy(self._array[start:stop].reshape(shape))
        return self._device[start:stop].view(shape)

    def whole(self) -> Tensor:
        """Everything as one vector."""
        return self.view(0, (self.size,))
