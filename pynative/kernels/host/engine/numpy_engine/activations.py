"""Activations with the bias in front of them, forward and backward, of a block of rows.

The functions of `ACTIVATIONS` work on float32 blocks x [r, f] (gated ones: [r, 2f] = gate | up) and may overwrite x:
`forward(x, out)` fills out with the result, `gradient(x, dy, dx)` dx with the gradient of x from dy, the result's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import pi, sqrt

import numpy as np

from parallel_core.numerics.activations import QUICK_SLOPE, GatedUnit, gated_unit
from parallel_core.numerics.dtypes import Array
from pynative.memory.rounding import fill, float32_for, widened

_ONE, _HALF = np.float32(1), np.float32(0.5)
_QUICK = np.float32(QUICK_SLOPE)
_TANH_SLOPE = np.float32(2 * sqrt(2 / pi))
_TANH_CUBIC = np.float32(2 * sqrt(2 / pi) * 0.044715)


def _sigmoid_of_negated(minus_z: Array) -> Array:
    """sigmoid(z) from -z, in place."""
    np.exp(minus_z, out=minus_z)
    minus_z += _ONE
    return np.reciprocal(minus_z, out=minus_z)


def _tanh_gate(x: Array) -> Array:
    """(1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks & Gimpel 2016)."""
    gate = np.square(x)
    gate *= -_TANH_CUBIC
    gate -= _TANH_SLOPE
    gate *= x
    return _sigmoid_of_negated(gate)


def _gelu_tanh_gradient(x: Array, dy: Array, dx: Array) -> None:
    gate = _tanh_gate(x)
    slope = np.square(x)  # turned into d(2u)/dx below
    slope *= 3 * _TANH_CUBIC
    slope += _TANH_SLOPE
    _gradient_of_gated_identity(x, gate, slope, dy, dx)


def _gradient_of_gated_identity(x: Array, gate: Array, slope: Array | None, dy: Array, dx: Array) -> None:
    """Fill dx for y = x sigmoid(z(x)): dy gate (1 + x z' (1 - gate)), gate = sigmoid(z), slope = z' (None: 1); x and
    slope are overwritten."""
    if slope is not None:
        x *= slope
    complement = np.subtract(_ONE, gate, out=slope)
    x *= complement
    x += _ONE
    x *= gate
    np.multiply(x, dy, out=dx)


# Phi(-a) exp(a^2/2) for a >= 0 as a ratio of polynomials, relative error 5e-9 (a minimax fit of our own). No
# coefficient is negative, so float32 evaluation loses nothing to cancellation.
_TAIL_NUMERATOR = tuple(np.float32(c) for c in (0.5, 0.43497543, 0.18078343, 0.03980859, 0.00399432))
_TAIL_DENOMINATOR = tuple(np.float32(c) for c in (1.0, 1.66783576, 1.19230329, 0.46299926, 0.09979298, 0.01001214))


def _polynomial(coefficients: tuple[np.float32, ...], x: Array) -> Array:
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value += coefficient
        value *= x
    value += coefficients[0]
    return value


def _normal_distribution(x: Array) -> tuple[Array, Array]:
    """(Phi(x), exp(-x^2/2)) of the standard normal distribution, to 1.4e-7 absolute."""
    bell = np.square(x)
    bell *= -_HALF
    np.exp(bell, out=bell)
    distance = np.minimum(np.abs(x), np.float32(16))
    tail = _polynomial(_TAIL_NUMERATOR, distance)
    tail /= _polynomial(_TAIL_DENOMINATOR, distance)
    tail *= bell
    np.subtract(_HALF, tail, out=tail)
    np.copysign(tail, x, out=tail)
    tail += _HALF
    return tail, bell


def _gelu_erf_gradient(x: Array, dy: Array, dx: Array) -> None:
    distribution, bell = _normal_distribution(x)
    bell *= x
    bell *= np.float32(1 / sqrt(2 * pi))
    bell += distribution
    np.multiply(bell, dy, out=dx)


def _silu(x: Array, out: Array) -> None:
    np.multiply(x, _sigmoid_of_negated(np.negative(x)), out=out)


def _gelu_quick_gradient(x: Array, dy: Array, dx: Array) -> None:
    gate = _sigmoid_of_negated(x * -_QUICK)
    _gradient_of_gated_identity(x, gate, np.full_like(x, _QUICK), dy, dx)


def _squared_relu(x: Array, out: Array) -> None:
    np.maximum(x, 0, out=x)
    np.square(x, out=out)


def _squared_relu_gradient(x: Array, dy: Array, dx: Array) -> None:
    np.maximum(x, 0, out=x)
    x += x
    np.multiply(x, dy, out=dx)


def _swiglu(x: Array, out: Array) -> None:
    gate, up = np.split(x, 2, axis=1)
    _silu(gate, out)
    out *= up


def _swiglu_gradient(x: Array, dy: Array, dx: Array) -> None:
    (gate, up), (gate_gradient, up_gradient) = np.split(x, 2, axis=1), np.split(dx, 2, axis=1)
    sigmoid = _sigmoid_of_negated(np.negative(gate))
    np.multiply(gate, sigmoid, out=up_gradient)
    up_gradient *= dy
    up *= dy
    _gradient_of_gated_identity(gate, sigmoid, None, up, gate_gradient)


@dataclass(frozen=True)
class Activation:
    """The two directions of an activation on float32 blocks of rows: `forward(x, out)` fills out with the result,
    `gradient(x, dy, dx)` dx with the gradient of x from dy, that of the result. Both may overwrite x."""

    forward: Callable[[Array, Array], object]
    gradient: Callable[[Array, Array, Array], object]


def _gated_by(gate: Activation, unit: GatedUnit) -> Activation:
    """The activation a(gate) * up of [gate | up], a being `gate`, with the unit's gain, limit and offset applied
    first, as `prepare_halves` does."""

    def forward(x: Array, out: Array) -> None:
        to_gate, up = np.split(x, 2, axis=1)
        prepare_halves(unit, to_gate, up)
        gate.forward(to_gate, out)
        out *= up

    def gradient(x: Array, dy: Array, dx: Array) -> None:
        (to_gate, up), (gate_gradient, up_gradient) = np.split(x, 2, axis=1), np.split(dx, 2, axis=1)
        beyond = prepare_halves(unit, to_gate, up)
        gate.forward(to_gate.copy(), up_gradient)
        up_gradient *= dy
        up *= dy
        gate.gradient(to_gate, up, gate_gradient)
        amplify(unit, gate_gradient)
        clear(beyond, gate_gradient, up_gradient)

    return Activation(forward, gradient)


def amplify(unit: GatedUnit, gate: Array) -> None:
    """Multiply an array of a unit's gate (its values, or their gradient) by the unit's gain, in place."""
    if unit.gain != 1.0:
        gate *= np.float32(unit.gain)


def prepare_halves(unit: GatedUnit, gate: Array, up: Array) -> tuple[Array, Array] | None:
    """Multiply the gate by the unit's gain and, if the unit has a limit or an offset (`is_limited`), bound the gate
    from above, up on both sides, and add the offset to up, in place. Returns (bool of gate, bool of up), True where a
    value was beyond its limit; None for a unit with neither limit nor offset."""
    amplify(unit, gate)
    if not unit.is_limited:
        return None
    beyond = gate > unit.limit, np.abs(up) > unit.limit
    np.minimum(gate, np.float32(unit.limit), out=gate)
    np.clip(up, -np.float32(unit.limit), np.float32(unit.limit), out=up)
    up += np.float32(unit.offset)
    return beyond


def clear(beyond: tuple[Array, Array] | None, *gradients: Array) -> None:
    """Set the gradients of a gated unit's two halves to 0, in place, where the half's mask in `beyond` is True (its
    value was beyond the limit); nothing for None."""
    for places, gradient in zip(beyond or (), gradients, strict=False):
        gradient[places] = 0


ACTIVATIONS = {
    "gelu_tanh": Activation(lambda x, out: np.multiply(x, _tanh_gate(x), out=out), _gelu_tanh_gradient),
    "gelu_erf": Activation(lambda x, out: np.multiply(x, _normal_distribution(x)[0], out=out), _gelu_erf_gradient),
    "gelu_quick": Activation(
        lambda x, out: np.multiply(x, _sigmoid_of_negated(x * -_QUICK), out=out), _gelu_quick_gradient
    ),
    "silu": Activation(
        _silu, lambda x, dy, dx: _gradient_of_gated_identity(x, _sigmoid_of_negated(np.negative(x)), None, dy, dx)
    ),
    "identity": Activation(lambda x, out: np.copyto(out, x), lambda x, dy, dx: np.copyto(dx, dy)),
    "relu": Activation(lambda x, out: np.maximum(x, 0, out=out), lambda x, dy, dx: np.multiply(dy, x > 0, out=dx)),
    "squared_relu": Activation(_squared_relu, _squared_relu_gradient),
    "swiglu": Activation(_swiglu, _swiglu_gradient),
}
"""Name -> activation, of those that are not gated, and of swiglu, which is written out; `_gated_by` makes the other
gated ones."""


@lru_cache
def _of(name: str) -> Activation:
    unit = gated_unit(name)
    return ACTIVATIONS[name] if name in ACTIVATIONS or unit is None else _gated_by(ACTIVATIONS[unit.gate], unit)


def activation(name: str, x: Array, bias: Array | None, out: Array) -> None:
    result = float32_for(out)
    _of(name).forward(_biased(x, bias), result)
    fill(out, result)


def activation_gradient(
    name: str, x: Array, bias: Array | None, dy: Array, dx: Array, bias_gradient: Array | None
) -> None:
    result = float32_for(dx)
    _of(name).gradient(_biased(x, bias), widened(dy), result)
    if bias_gradient is not None:
        np.matmul(np.ones(len(result), np.float32), result, out=bias_gradient)
    fill(dx, result)


def _biased(x: Array, bias: Array | None) -> Array:
    """x + bias as a new array."""
    if bias is not None:
        return np.add(widened(x), widened(bias))
    return x.copy() if x.dtype == np.float32 else widened(x)
