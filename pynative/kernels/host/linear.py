"""The three matrix products of a linear layer y = x W^T + bias and the sum of its bias gradient, on the host."""

import numpy as np
from mindspore import Tensor

from pynative.kernels.host.arrays import as_float32, delivered, destination, tensor_like
from pynative.kernels.host.threads import matmul_spans, row_blocks, run


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])


def matmul_by_rows(left: np.ndarray, right: np.ndarray, out: np.ndarray, bias: np.ndarray | None = None) -> None:
    """out = left right (+ bias), each thread computing a span of rows."""

    def piece(start: int, stop: int) -> None:
        np.matmul(left[start:stop], right, out=out[start:stop])
        if bias is not None:
            for first, last in row_blocks(stop - start, out.shape[1] * 4):
                out[start + first : start + last] += bias

    run(piece, matmul_spans(len(left), left.shape[0] * left.shape[1] * right.shape[1]))


def sum_of_rows(array: np.ndarray, out: np.ndarray) -> None:
    """out[j] = sum over i of array[i, j]: BLAS sums each block, pairwise summation the blocks."""
    blocks = row_blocks(len(array), array.shape[1] * 4)
    partial = np.empty((len(blocks), array.shape[1]), np.float32)
    ones = np.ones(len(array), np.float32)

    def piece(index: int, start: int, stop: int) -> None:
        np.matmul(ones[: stop - start], array[start:stop], out=partial[index])

    run(piece, [(index, *block) for index, block in enumerate(blocks)])
    np.sum(partial, axis=0, out=out)


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


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    dy_rows, x_rows = _rows(as_float32(dy)), _rows(as_float32(x))
    gradient = destination(out, (dy_rows.shape[1], x_rows.shape[1]))
    matmul_by_rows(dy_rows.T, x_rows, gradient)
    return delivered(gradient, out, dy)


def bias_gradient(dy: Tensor, out: Tensor | None = None) -> Tensor:
    dy_rows = _rows(as_float32(dy))
    gradient = destination(out, (dy_rows.shape[1],))
    sum_of_rows(dy_rows, gradient)
    return delivered(gradient, out, dy)
