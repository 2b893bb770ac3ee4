"""Layer norm (Ba et al. 2016) and RMS norm (Zhang & Sennrich 2019) over the last axis, one sweep each way, on the host.

Saved for backward: the input and two numbers a row (one for RMS norm). With x^ the normalized input, g = dy * weight
and c(.) the mean over a row (0 for RMS norm, which doesn't centre):
    dx = (g - c(g) - x^ * mean(g * x^)) / deviation      dweight = sum dy * x^      dbias = sum dy
Row means are matrix-vector products with `weight`: mean(g * x^) = (dy * x^) weight / h needs no array of its own.
"""

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, tensor_like
from pynative.kernels.host.threads import row_blocks, run


def _scale(weight: Tensor, zero_centered: bool) -> np.ndarray:
    values = as_float32(weight)
    return values + np.float32(1) if zero_centered else values


class _Norm:
    """Forward and backward on arrays; rows are [r, h], `centred` tells layer norm from RMS norm."""

    def __init__(self, scale: np.ndarray, bias: np.ndarray | None, epsilon: float, centred: bool) -> None:
        self.scale, self.bias, self.epsilon, self.centred = scale, bias, np.float32(epsilon), centred
        self.size = np.float32(len(scale))
        self.average = np.full(len(scale), 1 / len(scale), np.float32)

    def forward(self, x: np.ndarray, y: np.ndarray, mean: np.ndarray, inverse_deviation: np.ndarray) -> None:
        def block(start: int, stop: int) -> None:
            part, result = x[start:stop], y[start:stop]
            if self.centred:
                np.matmul(part, self.average, out=mean[start:stop])
                part = np.subtract(part, mean[start:stop, None], out=result)
            squares = np.einsum("rh,rh->r", part, part)
            inverse = 1 / np.sqrt(squares / self.size + self.epsilon)
            inverse_deviation[start:stop] = inverse
            np.multiply(part, inverse[:, None], out=result)
            result *= self.scale
            if self.bias is not None:
                result += self.bias

        run(block, row_blocks(len(x), x.shape[1] * 4))

    def backward(
        self, dy: np.ndarray, x: np.ndarray, mean: np.ndarray, inverse_deviation: np.ndarray, dx: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Fill dx; return the gradients of scale and bias (zeros without a bias)."""
        blocks = row_blocks(len(x), x.shape[1] * 4)
        sums = np.zeros((2, len(blocks), x.shape[1]), np.float32)

        def block(index: int, start: int, stop: int) -> None:
            gradient, result, inverse = dy[start:stop], dx[start:stop], inverse_deviation[start:stop, None]
            normalized = self._normalized(x[start:stop], mean[start:stop, None], inverse)
            product = np.multiply(gradient, normalized, out=result)
            ones = np.ones(stop - start, np.float32)
            np.matmul(ones, product, out=sums[0, index])
            normalized *= (np.matmul(product, self.scale) / self.size)[:, None]
            np.multiply(gradient, self.scale, out=result)
            result -= normalized
            if self.centred:
                result -= (np.matmul(gradient, self.scale) / self.size)[:, None]
            result *= inverse
            if self.bias is not None:
                np.matmul(ones, gradient, out=sums[1, index])

        run(block, [(index, *span) for index, span in enumerate(blocks)])
        return sums[0].sum(axis=0), sums[1].sum(axis=0)

    def _normalized(self, x: np.ndarray, mean: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        if not self.centred:
            return np.multiply(x, inverse)
        normalized = np.subtract(x, mean)
        normalized *= inverse
        return normalized


class _NormFunction(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, epsilon, zero_centered, centred):
        ctx.norm = _Norm(_scale(weight, zero_centered), None if bias is None else as_float32(bias), epsilon, centred)
        rows = as_float32(x).reshape(-1, x.shape[-1])
        y = np.empty(x.shape, np.float32)
        mean, inverse_deviation = np.zeros((2, len(rows)), np.float32)
        ctx.norm.forward(rows, y.reshape(rows.shape), mean, inverse_deviation)
        ctx.save_for_backward(x, from_numpy(mean), from_numpy(inverse_deviation))
        ctx.parameters = (weight, bias)
        return tensor_like(y, x)

    @staticmethod
    def backward(ctx, dy):
        x, mean, inverse_deviation = ctx.saved_tensors
        weight, bias = ctx.parameters
        rows = as_float32(x).reshape(-1, x.shape[-1])
        dy_rows, dx = as_float32(dy).reshape(rows.shape), np.empty(rows.shape, np.float32)
        statistics = mean.asnumpy(), inverse_deviation.asnumpy()
        scale_gradient, shift_gradient = ctx.norm.backward(dy_rows, rows, *statistics, dx)
        weight_gradient = add_summed_gradient(weight, scale_gradient)
        bias_gradient = None if bias is None else add_summed_gradient(bias, shift_gradient)
        return tensor_like(dx.reshape(x.shape), dy), weight_gradient, bias_gradient, None, None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _NormFunction.apply(x, weight, bias, epsilon, zero_centered, True)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _NormFunction.apply(x, weight, None, epsilon, zero_centered, False)
