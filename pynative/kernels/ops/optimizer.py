"""Optimizer updates and sums over flat float32 buffers, of MindSpore operators.

Results are put in place by `assign`: the in-place arithmetic methods of a tensor silently do nothing on a CPU.
"""

from math import sqrt

import mindspore
from mindspore import Tensor, ops


def adamw_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, learning_rate: float, beta1: float,
    beta2: float, epsilon: float, weight_decay: float, step: int, grad_scale: float = 1.0,
) -> None:  # fmt: skip
    scaled = grad * grad_scale
    average = exp_avg * beta1 + scaled * (1 - beta1)
    square = exp_avg_sq * beta2 + ops.square(scaled) * (1 - beta2)
    deviation = ops.sqrt(square) / sqrt(1 - beta2**step) + epsilon
    decayed = param * (1 - learning_rate * weight_decay)
    ops.assign(param, decayed - average / deviation * (learning_rate / (1 - beta1**step)))
    ops.assign(exp_avg, average)
    ops.assign(exp_avg_sq, square)


def sgd_(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor, *, learning_rate: float, momentum: float,
    weight_decay: float, grad_scale: float = 1.0,
) -> None:  # fmt: skip
    buffer = momentum_buffer * momentum + grad * grad_scale + param * weight_decay
    ops.assign(momentum_buffer, buffer)
    ops.assign(param, param - buffer * learning_rate)


def squared_norm(x: Tensor) -> float:
    return float(ops.square(x.astype(mindspore.float32)).sum())


def add_(x: Tensor, y: Tensor) -> None:
    ops.assign_add(x, y.astype(x.dtype))


def fill_(x: Tensor, value: float) -> None:
    ops.assign(x, ops.full(x.shape, value, dtype=x.dtype))
