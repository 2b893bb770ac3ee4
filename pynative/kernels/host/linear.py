"""The three matrix products of a linear layer y = x W^T + bias and the sum of its bias gradient, on the host."""

from functools import partial

import numpy as np
from mindspore import Tensor

from pynative.kernels.host.arrays import as_float32, deliver, tensor_like
from pynative.kernels.host.threads import MATMUL_ROWS, matmul_spans, row_blocks, run

SCRATCH_BYTES = 2 * 1024 * 1024
"""Of a product that is added to something. With half of it BLAS packs its right operand so often that it shows."""


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])


def matmul_by_rows(left: np.ndarray, right: np.ndarray, out: np.ndarray, bias: np.ndarray | None = None) -> None:
    """out = left right (+ bias), each thread computing a span of rows."""

    def span(start: int, stop: int) -> None:
        np.matmul(left[start:stop], right, out=out[start:stop])
        if bias is not None:
            for first, last in row_blocks(stop - start, out.shape[1] * 4):
                out[start + first : start + last] += bias

    run(span, matmul_spans(len(left), left.shape[0] * left.shape[1] * right.shape[1]))


def add_matmul_by_rows(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """out += left right: numpy's BLAS cannot add to what is there, so blocks are added while the cache has them."""
    rows = max(MATMUL_ROWS, SCRATCH_BYTES // (4 * out.shape[1]) // MATMUL_ROWS * MATMUL_ROWS)

    def span(start: int, stop: int) -> None:
        scratch = np.empty((min(rows, stop - start), out.shape[1]), np.float32)
        for first in range(start, stop, rows):
            block = slice(first, min(first + rows, stop))
            out[block] += np.matmul(left[block], right, out=scratch[: block.stop - first])

    run(span, matmul_spans(len(left), left.shape[0] * left.shape[1] * right.shape[1]))


def sum_of_rows(array: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    """out[j] = sum over i of array[i, j] (+ out[j]): BLAS sums each block, pairwise summation the blocks."""
    blocks = row_blocks(len(array), array.shape[1] * 4)
    partial = np.empty((len(blocks), array.shape[1]), np.float32)
    ones = np.ones(len(array), np.float32)

    def block(index: int, start: int, stop: int) -> None:
        np.matmul(ones[: stop - start], array[start:stop], out=partial[index])

    run(block, [(index, *span) for index, span in enumerate(blocks)])
    total = partial.sum(axis=0)
    np.add(out, total, out=out) if accumulate else np.copyto(out, total)


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x_array, weight_array = as_float32(x), as_float32(weight)
    y = np.empty((*x_array.shape[:-1], len(weight_array)), np.float32)
    matmul_by_rows(_rows(x_array), weight_array.T, _rows(y), None if bias is None else as_float32(bias))
    return tensor_like(y, x)


def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    dy_array, weight_array = as_float32(dy), as_float32(weight)
    dx = np.empty((*dy_array.shape[:-1], weight_array.shape[1]), np.float32)
    matmul_by_rows(_rows(dy_array), weight_array, _rows(dx))
    return tensor_like(dx, dy)


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    dy_rows, x_rows = _rows(as_float32(dy)), _rows(as_float32(x))

    def compute(memory: np.ndarray, add: bool) -> None:
        (add_matmul_by_rows if add else matmul_by_rows)(dy_rows.T, x_rows, memory)

    return deliver(compute, dy, (dy_rows.shape[1], x_rows.shape[1]), out, accumulate)


def bias_gradient(dy: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    dy_rows = _rows(as_float32(dy))
    return deliver(partial(sum_of_rows, dy_rows), dy, (dy_rows.shape[1],), out, accumulate)
