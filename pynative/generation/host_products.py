"""Products of a few rows with a weight on the host: to read the weight is most of what they cost.

BLAS's own threads compute them, or one: to wake a thread of the host kernels and to hand it the GIL takes 0.1 ms, as
long as a product. Of a single row and a weight OpenBLAS makes no copy. Of more rows it does, but not where a product
is small: so the weight is taken by blocks of outputs. Milliseconds for a weight of 1376 inputs and 512 outputs on Intel
model 207, of 1 row 0.10 with one thread and 0.05 with two; of 8 rows 0.24 and 0.14, by blocks 0.17 with one.
"""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.process import blas_has_all_threads
from pynative.kernels.host.threads import thread_count

BLOCK = 32
"""Outputs of a block."""

SMALL = 1_000_000
"""Multiply-adds up to which OpenBLAS makes no copy (kernel/x86_64/sgemm_small_kernel_permit_skylakex.c)."""

FEW = 8
"""Rows times threads up to which blocks, which one thread computes, are as fast as all at once."""


class Product:
    """x [b, i] -> x W^T + bias [b, o], float32, for a weight [o, i] and a bias [o], whose memory it reads."""

    def __init__(self, weight: Array, bias: Array | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.cut = len(weight) // BLOCK * BLOCK
        self.blocks = weight[: self.cut].reshape(-1, BLOCK, weight.shape[1]).transpose(0, 2, 1)

    def __call__(self, x: Array) -> Array:
        if 1 < len(x) <= min(FEW // thread_count(), SMALL // (BLOCK * x.shape[1])):
            y = self._by_blocks(x)
        else:
            with blas_has_all_threads():
                y = np.ascontiguousarray(np.matmul(self.weight, np.ascontiguousarray(x.T)).T)
        return y if self.bias is None else y + self.bias

    def _by_blocks(self, x: Array) -> Array:
        y = np.empty((len(x), len(self.weight)), np.float32)
        np.matmul(x, self.blocks, out=y[:, : self.cut].reshape(len(x), -1, BLOCK).swapaxes(0, 1))
        np.matmul(x, self.weight[self.cut :].T, out=y[:, self.cut :])
        return y
