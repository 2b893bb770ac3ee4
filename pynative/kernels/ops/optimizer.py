"""Optimizer updates and sums over flat buffers, of MindSpore operators."""

from math import isfinite, sqrt

import mindspore
from mindspore import Tensor, ops

from pynative import in_place
from pynative.kernels.contract.flat_buffers import AdamStep


def penalized(grad: Tensor, param: Tensor, settings: AdamStep) -> Tensor:
    """The scaled gradient in float32, with what weight decay adds to it."""
    scaled = ops.cast(grad, mindspore.float32) * settings.grad_scale
    return scaled + param * settings.penalty if settings.penalty else scaled


def adam_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamStep,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    scaled, (first, second) = penalized(grad, param, settings), settings.corrections
    average = ops.cast(exp_avg, mindspore.float32) * settings.beta1 + scaled * (1 - settings.beta1)
    square = ops.cast(exp_avg_sq, mindspore.float32) * settings.beta2 + ops.square(scaled) * (1 - settings.beta2)
    deviation = ops.sqrt(square) / sqrt(second) + settings.epsilon
    ops.assign(param, param * settings.decay - average / deviation * (settings.learning_rate / first))
    in_place.assign(exp_avg, average)
    in_place.assign(exp_avg_sq, square)
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


def combine_(x: Tensor, y: Tensor, x_factor: float, y_factor: float, model_param: Tensor | None = None) -> None:
    total = ops.cast(y, mindspore.float32) * y_factor
    if x_factor:
        total = total + ops.cast(x, mindspore.float32) * x_factor
    in_place.assign(x, total)
    if model_param is not None:
        in_place.assign(model_param, total)


def clamp_(x: Tensor, limit: float) -> None:
    values = ops.cast(x, mindspore.float32)
    # MindSpore's clamp on a CPU makes -limit of a NaN.
    in_place.assign(x, ops.select(ops.isnan(values), values, ops.clamp(values, -limit, limit)))


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
