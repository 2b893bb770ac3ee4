"""Activations by oneDNN's elementwise primitives, which want dense rows. Letters: r rows, f features of the input."""

import numpy as np

from pynative.onednn import primitives
from pynative.onednn.arrays import Array, layout_of, row_layout
from pynative.onednn.library import Algorithm
from pynative.onednn.primitives import Eltwise, Primitive

PLAIN = {
    "gelu_tanh": (Algorithm.GELU_TANH, 0.0),
    "gelu_erf": (Algorithm.GELU_ERF, 0.0),
    "silu": (Algorithm.SWISH, 1.0),
    "relu": (Algorithm.RELU, 0.0),
}
"""Name -> oneDNN's algorithm and its alpha."""

GATED = {"swiglu": "silu"}
"""Name -> the activation of its gate."""


def activation(name: str, x: Array, bias: Array | None, out: Array) -> bool:
    """Fill out with activation(x + bias), x [r, f]; False where oneDNN cannot."""
    if name in GATED:
        gate, up = np.split(x if bias is None else _sum(x, bias), 2, axis=1)
        return _run(_eltwise(GATED[name], out), np.ascontiguousarray(gate), out) and _multiply(
            out, np.ascontiguousarray(up), out
        )
    if name not in PLAIN:
        return False
    if bias is None:
        return _run(_eltwise(name, out), x, out)
    post_ops = (Eltwise(*PLAIN[name]),)
    added = primitives.binary(Algorithm.ADD, layout_of(x), row_layout(bias), layout_of(out), post_ops)
    return _run(added, x, bias, out)


def gradient(name: str, x: Array, bias: Array | None, dy: Array, dx: Array) -> bool:
    """Fill dx [r, f]; False where oneDNN cannot."""
    if name not in PLAIN and name not in GATED:
        return False
    x = x if bias is None else _sum(x, bias)
    if name in PLAIN:
        return _run(primitives.eltwise_gradient(*PLAIN[name], layout_of(dx)), x, dy, dx)
    gate, up = (np.ascontiguousarray(half) for half in np.split(x, 2, axis=1))
    gate_gradient, up_gradient = np.split(dx, 2, axis=1)
    activated = np.empty_like(gate)
    done = _run(_eltwise(GATED[name], gate), gate, activated) and _multiply(activated, dy, activated)
    up_gradient[...] = activated
    done = done and _multiply(up, dy, up)
    done = done and _run(primitives.eltwise_gradient(*PLAIN[GATED[name]], layout_of(gate)), gate, up, activated)
    gate_gradient[...] = activated
    return done


def _eltwise(name: str, like: Array) -> Primitive | None:
    return primitives.eltwise(*PLAIN[name], layout_of(like), layout_of(like))


def _multiply(left: Array, right: Array, out: Array) -> bool:
    return _run(
        primitives.binary(Algorithm.MULTIPLY, layout_of(left), layout_of(right), layout_of(out)), left, right, out
    )


def _sum(x: Array, bias: Array) -> Array:
    out = np.empty(x.shape, x.dtype)
    done = _run(primitives.binary(Algorithm.ADD, layout_of(x), row_layout(bias), layout_of(out)), x, bias, out)
    return out if done else x + bias


def _run(primitive: Primitive | None, *arrays: Array) -> bool:
    if primitive is None:
        return False
    primitive(*arrays)
    return True
