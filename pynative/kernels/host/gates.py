"""Gates on the host: decays and rates of linear attention's tokens, and the activated gate that multiplies a
result."""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows
from pynative.memory.rounding import convert, fill, widened
from pynative.tape.autograd import Function


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _as(x: Array, like: Tensor) -> Tensor:
    out = np.empty(like.shape, rows_of(like).dtype)
    convert(x.reshape(like.shape), out)
    return from_numpy(out)


class _RecurrentGates(Function):
    def forward(ctx: Any, x: Tensor, rate: Tensor | None, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
        ctx.parameters = a_log, dt_bias
        ctx.save_for_backward(x, *(() if rate is None else (rate,)))
        step = np.logaddexp(np.float32(0), as_float32(x) + as_float32(dt_bias))
        log_decay = -np.exp(as_float32(a_log)) * step
        return from_numpy(log_decay), from_numpy(step if rate is None else _sigmoid(as_float32(rate)))

    def backward(ctx: Any, dlog_decay: Tensor, drate: Tensor) -> tuple[Tensor | None, ...]:
        (x, *rate), (a_log, dt_bias) = ctx.saved_tensors, ctx.parameters
        before, factor = as_float32(x) + as_float32(dt_bias), -np.exp(as_float32(a_log))
        of_decay, of_rate = as_float32(dlog_decay), as_float32(drate)
        dstep, drates = factor * of_decay, None
        if rate:
            sigmoid = _sigmoid(as_float32(rate[0]))
            drates = _as(of_rate * sigmoid * (1 - sigmoid), rate[0])
        else:
            dstep = dstep + of_rate
        dx, axes = dstep * _sigmoid(before), tuple(range(before.ndim - 1))
        da_log = (factor * np.logaddexp(np.float32(0), before) * of_decay).sum(axes)
        return (
            _as(dx, x),
            drates,
            add_summed_gradient(a_log, da_log),
            add_summed_gradient(dt_bias, dx.sum(axes)),
        )


def recurrent_gates(x: Tensor, rate: Tensor | None, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    return _RecurrentGates.apply(x, rate, a_log, dt_bias)


def _activated(name: str, z: Array) -> Array:
    """silu or sigmoid of float32 z [r, c], as a new array."""
    if name == "sigmoid":
        return _sigmoid(z)
    value = np.empty(z.shape, np.float32)
    ENGINE.activation(name, z, None, value)
    return value


def _through_activation(name: str, z: Array, dvalue: Array) -> Array:
    """The gradient of z from dvalue, that of `_activated(name, z)`."""
    if name == "sigmoid":
        sigmoid = _sigmoid(z)
        return dvalue * sigmoid * (1 - sigmoid)
    dz = np.empty(z.shape, np.float32)
    ENGINE.activation_gradient(name, z, None, dvalue, dz, None)
    return dz


class _Gate(Function):
    def forward(ctx: Any, x: Tensor, z: Tensor, activation: str) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(x, z)
        rows = rows_of(x)
        y = np.empty_like(rows)

        def block(x: Array, z: Array, y: Array) -> None:
            value = _activated(activation, widened(z))
            fill(y, np.multiply(widened(x), value, out=y if y.dtype == np.float32 else value))

        by_rows(block, rows, rows_of(z).reshape(rows.shape), y)
        return from_numpy(y.reshape(x.shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, z = ctx.saved_tensors
        rows, gates = rows_of(x), rows_of(z).reshape(rows_of(x).shape)
        dx, dz = np.empty_like(rows), np.empty_like(gates)

        def block(x: Array, z: Array, dy: Array, dx: Array, dz: Array) -> None:
            wide, upstream = widened(z), widened(dy)
            fill(dx, upstream * _activated(ctx.activation, wide))
            fill(dz, _through_activation(ctx.activation, wide, upstream * widened(x)))

        by_rows(block, rows, gates, rows_of(dy).reshape(rows.shape), dx, dz)
        return from_numpy(dx.reshape(x.shape)), from_numpy(dz.reshape(z.shape)), None


def gate(x: Tensor, z: Tensor, activation: str) -> Tensor:
    return _Gate.apply(x, z, activation)
