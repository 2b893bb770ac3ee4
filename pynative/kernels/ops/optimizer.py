"""Optimizer updates and sums over flat buffers, of MindSpore operators."""

from math import isfinite, sqrt

import mindspore
from mindspore import Tensor, ops

from pynative import in_place


def adamw_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, learning_rate: float, beta1: float,
    beta2: float, epsilon: float, weight_decay: float, step: int, grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    scaled = ops.cast(grad, mindspore.float32) * grad_scale
    average = exp_avg * beta1 + scaled * (1 - beta1)
    square = exp_avg_sq * beta2 + ops.square(scaled) * (1 - beta2)
    deviation = ops.sqrt(square) / sqrt(1 - beta2**step) + epsilon
    decayed = param * (1 - learning_rate * weight_decay)
    ops.assign(param, decayed - average / deviation * (learning_rate / (1 - beta1**step)))
    ops.assign(exp_avg, average)
    ops.assign(exp_avg_sq, square)
    if model_param is not None:
        in_place.assign(model_param, param)


def sgd_(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor, *, learning_rate: float, momentum: float,
    weight_decay: float, grad_scale: float = 1.0, model_param: Tensor | None = None,
) -> None:  # fmt: skip
    scaled = ops.cast(grad, mindspore.float32) * grad_scale
    buffer = momentum_buffer * momentum + scaled + param * weight_decay
    ops.assign(momentum_buffer, buffer)
    ops.assign(param, param - buffer * learning_rate)
    if model_param is not None:
        in_place.assign(model_param, param)


def squared_norm(x: Tensor) -> float:
    values = x.astype(mindspore.float32)
    total = float(ops.square(values).sum())
    if isfinite(total):
        return total
    largest = float(ops.abs(values).max())
    return float(ops.square(values / largest).sum()) * largest**2


def add_(x: Tensor, y: Tensor) -> None:
    in_place.assign_add(x, y)


def scale_(x: Tensor, factor: float) -> None:
    in_place.assign(x, x.astype(mindspore.float32) * factor)


def fill_(x: Tensor, value: float) -> None:
    in_place.assign(x, ops.full(x.shape, value, dtype=mindspore.float32))
