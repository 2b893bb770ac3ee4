"""Activations of MindSpore operators; the backward of `bias_activation` starts from its input and bias."""

from collections.abc import Callable
from functools import partial
from math import pi, sqrt
from typing import Any

from mindspore import Tensor, ops
from mindspore.ops.auto_generate.gen_ops_prim import SiLUGrad
from mindspore.ops.operations._grad_ops import GeLUGrad

from parallel_core.numerics.activations import QUICK_SLOPE, GatedUnit, gated_unit
from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.kernels.ops.linear import bias_gradient
from pynative.tape.autograd import Function, add_weight_gradient

_gelu, _gelu_gradient, _silu_gradient = ops.GeLU(), GeLUGrad(), SiLUGrad()


def _gelu_erf_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """dy times d/dx x Phi(x) = Phi(x) + x phi(x), Phi and phi of the normal distribution."""
    return dy * ((ops.erf(x * sqrt(0.5)) + 1) * 0.5 + x * ops.exp(ops.square(x) * -0.5) * (1 / sqrt(2 * pi)))


def _gelu_quick_gradient(dy: Tensor, x: Tensor) -> Tensor:
    gate = ops.sigmoid(x * QUICK_SLOPE)
    return dy * gate * (1 + x * QUICK_SLOPE * (1 - gate))


def _relu(x: Tensor) -> Tensor:
    # On a CPU `ops.relu`, and `maximum` with swapped operands, turn NaN into 0, which would hide it.
    return ops.maximum(0.0, x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": _gelu,
    "gelu_erf": lambda x: x * (ops.erf(x * sqrt(0.5)) + 1) * 0.5,
    "gelu_quick": lambda x: x * ops.sigmoid(x * QUICK_SLOPE),
    "silu": ops.silu,
    "identity": lambda x: x * 1.0,
    "relu": _relu,
    "squared_relu": lambda x: ops.square(_relu(x)),
}
"""Name -> activation of each feature by itself; gated activations are not among them."""

GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu_tanh": lambda dy, x: _gelu_gradient(dy, x, x),  # The operator ignores its last argument, the output.
    "gelu_erf": _gelu_erf_gradient,
    "gelu_quick": _gelu_quick_gradient,
    "silu": _silu_gradient,
    "identity": lambda dy, x: dy * 1.0,
    "relu": lambda dy, x: ops.select(x <= 0, 0.0, dy),
    "squared_relu": lambda dy, x: dy * 2.0 * _relu(x),
}
"""Name of an activation in ACTIVATIONS -> its backward, a function (gradient of the result, x) -> gradient of x."""


def activated(x: Tensor, activation: str, plain: dict[str, Callable[[Tensor], Tensor]] = ACTIVATIONS) -> Tensor:
    """The activation named `activation`, of x: that function of the table `plain`, or for a gated one (`gated_unit`)
    a(gate) * up, where gate and up are the first and second half of x's last axis after gain, limit and offset, and a
    is the gate's function of `plain`. Raises KeyError for a function that `plain` lacks."""
    unit = gated_unit(activation)
    if unit is None:
        return plain[activation](x)
    gate, up = _prepared(unit, *ops.chunk(x, 2, -1))
    return plain[unit.gate](gate) * up


def _prepared(unit: GatedUnit, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """(gate times the unit's gain, at most its limit; up between -limit and limit, plus its offset); without a limit up
    as it is."""
    gate = gate if unit.gain == 1.0 else gate * unit.gain
    if not unit.is_limited:
        return gate, up
    # Not `clamp`, which turns NaN into a limit on a CPU.
    up = ops.select(up < -unit.limit, -unit.limit, ops.select(up > unit.limit, unit.limit, up))
    return ops.select(gate > unit.limit, unit.limit, gate), up + unit.offset


def _forward(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return activated(x if bias is None else ops.add(x, bias), activation)


def _gradient(dy: Tensor, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """The gradient of x + bias, in the type of that sum, from that of activation(x + bias)."""
    if bias is not None:
        x = ops.add(x, bias)
    unit = gated_unit(activation)
    if unit is None:
        return GRADIENTS[activation](dy, x)
    halves = ops.chunk(x, 2, -1)
    gate, up = _prepared(unit, *halves)
    of_gate, of_up = GRADIENTS[unit.gate](dy * up, gate), dy * ACTIVATIONS[unit.gate](gate)
    of_gate = of_gate if unit.gain == 1.0 else of_gate * unit.gain
    if unit.is_limited:
        of_gate = ops.masked_fill(of_gate, halves[0] * unit.gain > unit.limit, 0.0)
        of_up = ops.masked_fill(of_up, ops.abs(halves[1]) > unit.limit, 0.0)
    return ops.cat((of_gate, of_up), -1)


class _BiasActivation(Function):
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bias, ctx.activation = bias, activation
        return _forward(x, bias, activation)

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        dx = _gradient(dy, x, ctx.bias, ctx.activation)
        of_bias = None if ctx.bias is None else add_weight_gradient(ctx.bias, partial(bias_gradient, dx))
        return cast(dx, x.dtype), of_bias, None


@widened_on_cpu("x")
def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return _BiasActivation.apply(x, bias, activation)
