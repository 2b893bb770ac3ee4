"""Products of a few rows with a weight on the host: reading the weight is all that they cost.

oneDNN reads a weight in the order of its inputs faster than in that of its outputs, in which it is trained, and several
rows in one go; so a copy is kept, in as many parts as there are threads.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pynative.kernels.host.threads import run, thread_count
from pynative.onednn import primitives
from pynative.onednn.arrays import layout_of


class Product:
    """x [b, i] -> x W^T + bias [b, o], float32, for the weight [o, i] as it is when this is made."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        self.outputs, self.bias = len(weight), bias
        parts = [part for part in np.array_split(weight, thread_count()) if len(part)]
        self.parts = [np.ascontiguousarray(part.T) for part in parts]
        spans = pairwise(np.cumsum([0, *map(len, parts)]).tolist())
        self.tasks = [(part, slice(*span)) for part, span in zip(self.parts, spans, strict=True)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        y = np.empty((len(x), self.outputs), np.float32)

        def task(part: np.ndarray, span: slice) -> None:
            out = y[:, span]
            primitive = primitives.product(layout_of(x), layout_of(part), layout_of(out))
            if primitive is None:
                np.matmul(x, part, out=out)
            else:
                primitive(x, part, out)

        run(task, self.tasks)
        if self.bias is not None:
            y += self.bias
        return y
