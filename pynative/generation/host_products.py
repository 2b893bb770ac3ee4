"""Products of a few rows with a weight on the host: to read the weight is most of what they cost.

oneDNN multiplies few rows fastest with panels of some outputs each, whose inputs lie one after another, and reads each
once for all rows; so a copy is kept. A core of Intel model 207, milliseconds for 8 rows of 1376 inputs and 512 outputs:
0.29, with the weight as it is trained 0.55, transposed as a whole 0.43.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor

from pynative.arrays import array_of
from pynative.kernels.host.threads import run, thread_count
from pynative.onednn import primitives
from pynative.onednn.arrays import layout_of

PANEL = 64
"""Outputs of a panel."""


class Product:
    """x [b, i] -> x W^T + bias [b, o], float32, for the weight [o, i] as it is when this is made."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        self.outputs, self.bias = len(weight), bias
        padded = np.zeros((-(-len(weight) // PANEL) * PANEL, weight.shape[1]), np.float32)
        padded[: len(weight)] = weight
        self.panels = np.ascontiguousarray(padded.reshape(-1, PANEL, weight.shape[1]).transpose(0, 2, 1))
        parts = np.array_split(np.arange(len(self.panels)), thread_count())
        self.tasks = [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        y = np.empty((len(x), len(self.panels) * PANEL), np.float32)
        rows, by_panel = x[None], y.reshape(len(x), -1, PANEL).swapaxes(0, 1)

        def task(start: int, stop: int) -> None:
            panels, out = self.panels[start:stop], by_panel[start:stop]
            primitive = primitives.product(layout_of(rows), layout_of(panels), layout_of(out))
            if primitive is None:
                np.matmul(rows, panels, out=out)
            else:
                primitive(rows, panels, out)

        run(task, self.tasks)
        result = y[:, : self.outputs]
        return result if self.bias is None else result + self.bias


class Products:
    """The products of a model's weights, each made when it is first asked for: while nobody trains the model."""

    def __init__(self) -> None:
        self._made: dict[int, Product] = {}

    def of(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """That of a parameter, with a bias or without."""
        made = self._made.get(id(weight))
        if made is None:
            made = self._made[id(weight)] = Product(array_of(weight), None if bias is None else array_of(bias))
        return made
