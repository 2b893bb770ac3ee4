"""Operators by an Ascend's fused kernels that need no flag; a form in `fused` that a flag switches on goes before. Not
run on hardware: nobody here had one.

The signatures are those of MindSpore 2.10.
"""

import mindspore
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import AdamW

from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.kernels.ops import optimizer as composed
from pynative.kernels.ops.activation import ACTIVATIONS, activated
from pynative.kernels.ops.experts import weighted
from pynative.kernels.ops.norm import norm_scale
from pynative.memory import in_place

_adamw = AdamW()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    """`kernels.layer_norm` by aclnnLayerNorm, which takes weight and bias in the type of x or in float32."""
    dtype = mindspore.float32 if zero_centered else x.dtype
    weight, bias = (ops.cast(each, dtype) for each in (norm_scale(weight, zero_centered), bias))
    return mint.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, epsilon)


GELUS = {
    "gelu_tanh": lambda x: mint.nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": lambda x: mint.nn.functional.gelu(x, approximate="none"),
}
"""Name of a GELU -> aclnnGelu in that form."""


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return activated(x if bias is None else x + bias, activation, ACTIVATIONS | GELUS)


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    return weighted(bias_activation, x, factors, activation)


def adam_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamStep,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    """`kernels.adam_` by aclnnApplyAdamWV2, whose step counts from 0 and has shape (1,); exp_avg_sq stands in for
    amsgrad's maximum, unused. The kernel takes averages of param's type and always corrects them: with averages of
    another type, or without correction, the composed operator computes."""
    if not settings.is_corrected or not exp_avg.dtype == exp_avg_sq.dtype == param.dtype:
        composed.adam_(param, grad, exp_avg, exp_avg_sq, settings, model_param)
        return
    decay = settings.weight_decay if settings.is_decoupled else 0.0
    _adamw(
        param, exp_avg, exp_avg_sq, exp_avg_sq, composed.penalized(grad, param, settings),
        Tensor([settings.step - 1], mindspore.float32), settings.learning_rate, settings.beta1, settings.beta2, decay,
        settings.epsilon, False, False,
    )  # fmt: skip
    if model_param is not None:
        in_place.assign(model_param, param)
