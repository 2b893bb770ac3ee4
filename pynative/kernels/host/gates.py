"""Gates of linear attention on the host: decays and rates of tokens, and what a result is multiplied with."""

from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, rows_of
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


def _activated(name: str, z: Array) -> tuple[Array, Array]:
    """silu or sigmoid of z, float32, and its slope."""
    sigmoid = _sigmoid(z)
    if name == "sigmoid":
        return sigmoid, sigmoid * (1 - sigmoid)
    return z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))


class _Gate(Function):
    def forward(ctx: Any, x: Tensor, z: Tensor, activation: str) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(x, z)
        rows = rows_of(x)
        y = np.empty_like(rows)

        def block(x: Array, z: Array, y: Array) -> None:
            fill(y, widened(x) * _activated(activation, widened(z))[0])

        by_rows(block, rows, rows_of(z).reshape(rows.shape), y)
        return from_numpy(y.reshape(x.shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, z = ctx.saved_tensors
        rows, gates = rows_of(x), rows_of(z).reshape(rows_of(x).shape)
        dx, dz = np.empty_like(rows), np.empty_like(gates)

        def block(x: Array, z: Array, dy: Array, dx: Array, dz: Array) -> None:
            value, slope = _activated(ctx.activation, widened(z))
            fill(dx, widened(dy) * value)
            fill(dz, widened(dy) * widened(x) * slope)

        by_rows(block, rows, gates, rows_of(dy).reshape(rows.shape), dx, dz)
        return from_numpy(dx.reshape(x.shape)), from_numpy(dz.reshape(z.shape)), None


def gate(x: Tensor, z: Tensor, activation: str) -> Tensor:
    return _Gate.apply(x, z, activation)
