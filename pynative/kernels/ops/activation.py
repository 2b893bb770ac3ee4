"""Activations of MindSpore operators, as few as there are."""

from collections.abc import Callable
from math import sqrt

from mindspore import Tensor, ops

from parallel_core.activations import GATES
from pynative.kernels.ops.linear import biased


def _gelu_erf(x: Tensor) -> Tensor:
    return x * (ops.erf(x * sqrt(0.5)) + 1) * 0.5


def _relu(x: Tensor) -> Tensor:
    # On a CPU `ops.relu`, and `maximum` with its operands the other way round, make 0 of a NaN, which nobody would see.
    return ops.maximum(0.0, x)


def _squared_relu(x: Tensor) -> Tensor:
    return ops.square(_relu(x))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": ops.GeLU(),
    "gelu_erf": _gelu_erf,
    "silu": ops.silu,
    "relu": _relu,
    "squared_relu": _squared_relu,
}
"""Activations of single features."""


def activated(x: Tensor, activation: str, plain: dict[str, Callable[[Tensor], Tensor]] = ACTIVATIONS) -> Tensor:
    """activation(x), gated or not, of these plain ones."""
    if activation not in GATES:
        return plain[activation](x)
    gate, up = ops.chunk(x, 2, -1)
    return plain[GATES[activation]](gate) * up


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return activated(biased(x, bias), activation)
