"""Activations of MindSpore operators. `ops.gelu` is many times slower on a CPU than the same written with sigmoid."""

from collections.abc import Callable
from math import pi, sqrt

from mindspore import Tensor, ops


def _gelu_tanh(x: Tensor) -> Tensor:
    """(1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks & Gimpel 2016)."""
    return x * ops.sigmoid(x * (ops.square(x) * (2 * sqrt(2 / pi) * 0.044715) + 2 * sqrt(2 / pi)))


def _gelu_erf(x: Tensor) -> Tensor:
    return x * (ops.erf(x * sqrt(0.5)) + 1) * 0.5


def _squared_relu(x: Tensor) -> Tensor:
    return ops.square(ops.relu(x))


def _swiglu(x: Tensor) -> Tensor:
    gate, up = ops.chunk(x, 2, -1)
    return ops.silu(gate) * up


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": _gelu_erf,
    "silu": ops.silu,
    "relu": ops.relu,
    "squared_relu": _squared_relu,
    "swiglu": _swiglu,
}


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return ACTIVATIONS[activation](x if bias is None else x + bias)
