"""Layer norm and RMS norm of MindSpore operators; statistics in float32 whatever the type of the input."""

from functools import cache

import mindspore
from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import cast

FLOAT32 = mindspore.float32


@cache
def _layer_norm(epsilon: float) -> ops.LayerNorm:
    return ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=epsilon)


def scale(weight: Tensor, zero_centered: bool) -> Tensor:
    """The factor a norm multiplies with: the weight, or in float32 the weight plus 1."""
    return cast(weight, FLOAT32) + 1 if zero_centered else weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    wide, factor, shift = (cast(each, FLOAT32) for each in (x, scale(weight, zero_centered), bias))
    y, _, _ = _layer_norm(epsilon)(wide, factor, shift)
    return cast(y, x.dtype)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    wide = cast(x, FLOAT32)
    inverse = ops.rsqrt(ops.mean(ops.square(wide), -1, True) + epsilon)
    return cast(wide * inverse * scale(weight, zero_centered), x.dtype)
