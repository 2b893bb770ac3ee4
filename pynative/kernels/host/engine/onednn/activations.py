"""Activations by oneDNN's elementwise primitives, which want dense rows. Letters: r rows, f features of the input."""

from collections.abc import Callable

import numpy as np

from parallel_core.numerics.activations import QUICK_SLOPE, GatedUnit, gated_unit
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.numpy_engine.activations import amplify, clear, prepare_halves
from pynative.memory.rounding import convert, fill, widened
from pynative.onednn import primitives
from pynative.onednn.layouts import layout_of, row_layout
from pynative.onednn.library import Algorithm, Primitive
from pynative.onednn.primitives import Eltwise

PLAIN = {
    "gelu_tanh": (Algorithm.GELU_TANH, 0.0),
    "gelu_erf": (Algorithm.GELU_ERF, 0.0),
    "gelu_quick": (Algorithm.SWISH, QUICK_SLOPE),
    "silu": (Algorithm.SWISH, 1.0),
}
"""Name of an activation -> (oneDNN's algorithm, its alpha). Its relu is not used: it makes 0 of a NaN, which then
nobody would see."""


def activation(name: str, x: Array, bias: Array | None, out: Array) -> bool:
    """Fill out with activation(x + bias), x [r, f], as `Engine.activation` does, and return True; False where that is
    left to numpy."""
    unit = gated_unit(name)
    if unit is not None:
        gate, up = _halves(x, bias)
        prepare_halves(unit, gate, up)
        done = _run(_eltwise(unit.gate, gate), gate, gate)
        fill(out, np.multiply(gate, up, out=_own_or(out, gate)))
        return done
    if name not in PLAIN:
        return False
    if bias is None:
        done = _run(_eltwise(name, out), x, out)
    else:
        post_ops = (Eltwise(*PLAIN[name]),)
        added = primitives.binary(Algorithm.ADD, layout_of(x), row_layout(bias), layout_of(out), post_ops)
        done = _run(added, x, bias, out)
    if done or x.dtype == np.float32:
        return done
    return _by_way_of_float32(_eltwise, name, (_wide_sum(x, bias),), out)


def gradient(name: str, x: Array, bias: Array | None, dy: Array, dx: Array) -> bool:
    """Fill dx [r, f] with the gradient of x + bias from dy, that of activation(x + bias), and return True; False where
    that is left to numpy."""
    unit = gated_unit(name)
    if unit is not None:
        return _gated_gradient(unit, _halves(x, bias), widened(dy), dx)
    if name not in PLAIN:
        return False
    if _run(_eltwise_gradient(name, dx), x if bias is None else _sum(x, bias), dy, dx):
        return True
    if x.dtype == np.float32:
        return False
    return _by_way_of_float32(_eltwise_gradient, name, (_wide_sum(x, bias), widened(dy)), dx)


def _gated_gradient(unit: GatedUnit, halves: tuple[Array, Array], dy: Array, dx: Array) -> bool:
    (gate, up), (gate_gradient, up_gradient), name = halves, np.split(dx, 2, axis=1), unit.gate
    beyond = prepare_halves(unit, gate, up)
    result = np.empty_like(gate)
    done = _run(_eltwise(name, gate), gate, result)
    fill(up_gradient, np.multiply(result, dy, out=_own_or(up_gradient, result)))
    up *= dy
    done = done and _run(_eltwise_gradient(name, gate), gate, up, result)
    amplify(unit, result)
    convert(result, gate_gradient)
    clear(beyond, gate_gradient, up_gradient)
    return done


def _own_or(out: Array, scratch: Array) -> Array:
    """The array in which float32 values for `out` are computed: `out` itself or, where it is of 16 bits, `scratch`."""
    return out if out.dtype == np.float32 else scratch


def _halves(x: Array, bias: Array | None) -> tuple[Array, Array]:
    """(gate, up), the two halves of x + bias, as float32 arrays of dense rows, which eltwise primitives want."""
    size = x.shape[1] // 2
    gate, up = np.empty((2, len(x), size), np.float32)
    for first, half in ((0, gate), (size, up)):
        convert(x[:, first : first + size], half)
        if bias is not None:
            half += widened(bias[first : first + size])
    return gate, up


def _eltwise(name: str, like: Array) -> Primitive | None:
    return primitives.eltwise(*PLAIN[name], layout_of(like), layout_of(like))


def _eltwise_gradient(name: str, like: Array) -> Primitive | None:
    return primitives.eltwise_gradient(*PLAIN[name], layout_of(like))


def _by_way_of_float32(
    primitive: Callable[[str, Array], Primitive | None], name: str, operands: tuple[Array, ...], out: Array
) -> bool:
    """Fill a 16-bit `out` with the result of a primitive on the operands in float32; False where there is no
    primitive."""
    result = np.empty(out.shape, np.float32)
    done = _run(primitive(name, result), *operands, result)
    convert(result, out)
    return done


def _wide_sum(x: Array, bias: Array | None) -> Array:
    """x + bias of 16-bit x, as float32."""
    wide = widened(x)
    if bias is not None:
        wide += widened(bias)
    return wide


def _sum(x: Array, bias: Array) -> Array:
    out = np.empty(x.shape, x.dtype)
    done = _run(primitives.binary(Algorithm.ADD, layout_of(x), row_layout(bias), layout_of(out)), x, bias, out)
    return out if done else x + bias


def _run(primitive: Primitive | None, *arrays: Array) -> bool:
    if primitive is None:
        return False
    primitive(*arrays)
    return True
