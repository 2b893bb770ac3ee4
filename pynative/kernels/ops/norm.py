"""Layer norm and RMS norm of MindSpore operators; statistics in float32 whatever the type of the input."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops.auto_generate import LayerNormGrad

from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.kernels.ops.linear import delivered
from pynative.tape.autograd import Function, add_weight_gradient, add_weight_gradients

FLOAT32 = mindspore.float32


@cache
def _layer_norm(epsilon: float) -> ops.LayerNorm:
    return ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=epsilon)


@cache
def _layer_norm_gradient(epsilon: float) -> LayerNormGrad:
    """MindSpore's gradient of layer norm with this epsilon, which is a property of the operator with another default,
    no argument."""
    return LayerNormGrad(begin_norm_axis=-1, begin_params_axis=-1).add_prim_attr("epsilon", epsilon)


class _LayerNorm(Function):
    """Layer norm on the tape. The tape's own backward of the operator would leave both parameters' gradients in
    `_grad`, from where they would be moved."""

    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
        y, mean, variance = _layer_norm(epsilon)(x, weight, bias)
        ctx.parameters, ctx.epsilon = (weight, bias), epsilon
        ctx.save_for_backward(x, mean, variance)
        return y

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, variance = ctx.saved_tensors
        dx, *of_parameters = _layer_norm_gradient(ctx.epsilon)(x, dy, variance, mean, ctx.parameters[0])

        def gradients(out: Sequence[Tensor | None], accumulate: Sequence[bool]) -> list[Tensor]:
            return [delivered(*each) for each in zip(of_parameters, out, accumulate, strict=True)]

        return dx, *add_weight_gradients(ctx.parameters, gradients), None


def norm_scale(weight: Tensor, zero_centered: bool) -> Tensor:
    """The factor with which a norm multiplies: the weight, or weight + 1 in float32 if `zero_centered`."""
    return cast(weight, FLOAT32) + 1 if zero_centered else weight


@widened_on_cpu("x")
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    wide, factor, shift = (cast(each, FLOAT32) for each in (x, norm_scale(weight, zero_centered), bias))
    return cast(_LayerNorm.apply(wide, factor, shift, epsilon), x.dtype)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool) -> tuple[Tensor, Tensor]:
    """(the normed rows times the scale, 1 / their root mean square [..., 1] float32)."""
    wide = cast(x, FLOAT32)
    inverse = ops.rsqrt(ops.mean(ops.square(wide), -1, True) + epsilon)
    return cast(wide * inverse * norm_scale(weight, zero_centered), x.dtype), inverse


def _rms_norm_gradient(
    dy: Tensor, x: Tensor, inverse: Tensor, weight: Tensor, zero_centered: bool
) -> tuple[Tensor, Tensor]:
    """(dx, dweight) of RMS norm.

    With r = 1 / sqrt(mean(x^2) + epsilon), x^ = x r and g = dy weight: dx = r (g - x^ mean(g x^)), dweight = sum dy x^.
    """
    dy, normalized = cast(dy, FLOAT32), cast(x, FLOAT32) * inverse
    share = dy * norm_scale(weight, zero_centered)
    dx = inverse * (share - normalized * ops.mean(share * normalized, -1, True))
    return cast(dx, x.dtype), (dy * normalized).reshape(-1, x.shape[-1]).sum(axis=0)


class _RmsNorm(Function):
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool) -> Tensor:
        y, inverse = _rms_norm(x, weight, epsilon, zero_centered)
        ctx.save_for_backward(x, inverse)
        ctx.weight, ctx.zero_centered = weight, zero_centered
        return y

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse = ctx.saved_tensors
        dx, of_weight = _rms_norm_gradient(dy, x, inverse, ctx.weight, ctx.zero_centered)
        return dx, add_weight_gradient(ctx.weight, partial(delivered, of_weight)), None, None


@widened_on_cpu("x")
def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _RmsNorm.apply(x, weight, epsilon, zero_centered)
