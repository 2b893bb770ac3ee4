"""Optimizer updates, arithmetic and sums over flat buffers, of MindSpore operators."""

from collections.abc import Sequence
from math import isfinite, sqrt

import mindspore
import numpy as np
from mindspore import Tensor, ops

from pynative.kernels.contract.flat_buffers import AdamStep, Formula
from pynative.kernels.ops.elementwise import cast
from pynative.memory import in_place

_adam = ops.Adam()


def penalized(grad: Tensor, param: Tensor, settings: AdamStep) -> Tensor:
    """settings.grad_scale x grad + settings.penalty x param, float32: Adam's gradient with L2 regularisation."""
    scaled = cast(grad, mindspore.float32)
    if settings.grad_scale != 1:
        scaled = scaled * settings.grad_scale
    return scaled + param * settings.penalty if settings.penalty else scaled


def adam_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamStep,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    raised = sqrt((1 - settings.beta2) / _float32_complement(settings.beta2))
    gradient = penalized(grad, param, settings) * raised
    average, square = (cast(kept, mindspore.float32) for kept in (exp_avg, exp_avg_sq))
    if settings.decay != 1:
        in_place.assign(param, param * settings.decay)
    rate, epsilon = _rate_and_epsilon(settings, raised)
    _adam(param, average, square, 0.0, 0.0, rate, settings.beta1, settings.beta2, epsilon, gradient)
    for kept, wide in ((exp_avg, average), (exp_avg_sq, square)):
        if wide is not kept:
            in_place.assign(kept, wide)
    if model_param is not None:
        in_place.assign(model_param, param)


def _rate_and_epsilon(settings: AdamStep, raised: float) -> tuple[float, float]:
    """(learning rate, epsilon) with which MindSpore's update, which does not correct its averages, gives that of one
    which does.

    The operator has float32 alone, in which 1 - 0.999 is off by 1e-5. The gradient was multiplied by `raised` so that
    the average of squares is right; the other average is then larger by 6e-6, which is known and taken out of the
    quotient.
    """
    first, second = settings.corrections
    excess = raised * _float32_complement(settings.beta1) / (1 - settings.beta1)
    return settings.learning_rate * sqrt(second) / (first * excess), settings.epsilon * sqrt(second)


def _float32_complement(beta: float) -> float:
    return float(np.float32(1) - np.float32(beta))


def update_(
    formula: Formula, param: Tensor, grad: Tensor, moments: Sequence[Tensor], grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    values = [cast(x, mindspore.float32) for x in (grad, *moments)]
    updated = formula(ops, param, values[0] * grad_scale, *values[1:])
    for place, value in zip((param, *moments), updated, strict=True):
        in_place.assign(place, value)
    if model_param is not None:
        in_place.assign(model_param, param)


def combine_(x: Tensor, y: Tensor, x_factor: float, y_factor: float, model_param: Tensor | None = None) -> None:
    total = cast(y, mindspore.float32) * y_factor
    if x_factor:
        total = total + cast(x, mindspore.float32) * x_factor
    in_place.assign(x, total)
    if model_param is not None:
        in_place.assign(model_param, total)


def clamp_(x: Tensor, limit: float) -> None:
    values = cast(x, mindspore.float32)
    # MindSpore's clamp on a CPU turns NaN into -limit.
    in_place.assign(x, ops.select(ops.isnan(values), values, ops.clamp(values, -limit, limit)))


def squared_norm(x: Tensor) -> float:
    values = cast(x, mindspore.float32)
    total = float(ops.square(values).sum())
    if isfinite(total):
        return total
    largest = float(ops.abs(values).max())
    return float(ops.square(values / largest).sum()) * largest**2


def all_finite(x: Tensor) -> Tensor:
    return ops.isfinite(cast(x, mindspore.float32)).all().reshape(1)


def add_(x: Tensor, y: Tensor) -> None:
    in_place.assign_add(x, y)


def scale_(x: Tensor, factor: float) -> None:
    in_place.assign(x, cast(x, mindspore.float32) * factor)


def fill_(x: Tensor, value: float) -> None:
    in_place.assign(x, ops.full(x.shape, value, dtype=mindspore.float32))
