"""Products of rows sorted by weight with several linears' weights, experts' activations and biases, and shared experts'
gate, on the host.

R rows of all groups, r of a span; i inputs, o outputs.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate as running_sum
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.activations import gated_unit
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import add_summed_gradient, delivered, gradient_memory, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows, matmul_spans, run
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert, fill, float32_for, put, widened
from pynative.tape.autograd import Function, Moved, add_weight_gradient


def _spans(counts: Sequence[int]) -> list[slice]:
    """The rows of each group as slices of all rows."""
    ends = list(running_sum(map(int, counts)))
    return [slice(end - int(count), end) for end, count in zip(ends, counts, strict=True)]


SAME_ROWS, COPIED_ROWS = 32, 256
"""Products have multiples of SAME_ROWS rows, with zeros behind a group's: experts get other numbers of rows in every
step, and oneDNN makes a primitive for each shape, which takes as long as a tenth of a step. The rows before the zeros,
fewer than 2 COPIED_ROWS, are copied; a product of the rest alone, of few rows, would read the weight once more."""


def _in_place(rows: int) -> int:
    """The number of a group's first rows that are multiplied where they are; the others are copied."""
    return rows if rows % SAME_ROWS == 0 else max(0, rows // COPIED_ROWS - 1) * COPIED_ROWS


def _filled(rows: Array) -> Array:
    """A copy of rows [r, k] with zeros behind them, up to a multiple of SAME_ROWS."""
    filled = np.empty((-(-len(rows) // SAME_ROWS) * SAME_ROWS, rows.shape[1]), rows.dtype)
    filled[: len(rows)] = rows
    filled[len(rows) :] = 0
    return filled


def _rows_times(rows: Array, weight: Array, out: Array) -> None:
    """Fill out [r, c] with rows [r, k] times weight [k, c]."""
    first = _in_place(len(rows))
    if first:
        ENGINE.matmul(rows[:first], weight, out[:first])
    if first < len(rows):
        filled = _filled(rows[first:])
        product = np.empty((len(filled), out.shape[1]), out.dtype)
        ENGINE.matmul(filled, weight, product)
        out[first:] = product[: len(rows) - first]


def _sum_over_rows(left: Array, right: Array, out: Array, accumulated: bool) -> None:
    """Fill out [o, i] with left [r, o]^T right [r, i], or add that to it. A 16-bit result is rounded once, so its sum
    is not split."""
    first = _in_place(len(left)) if out.dtype == np.float32 or len(left) % SAME_ROWS == 0 else 0
    if first:
        ENGINE.matmul(left[:first].T, right[:first], out, None, accumulated)
    if first < len(left):
        ENGINE.matmul(_filled(left[first:]).T, _filled(right[first:]), out, None, accumulated or first > 0)


def _by_weight(x: Tensor, weights: Sequence[Array], counts: Sequence[int]) -> Tensor:
    """Each row of x [R, k] times the weight [k, c] of its group, [R, c]; the threads share out spans of rows."""
    rows = rows_of(x)
    y = np.empty((len(rows), weights[0].shape[1]), rows.dtype)
    tasks = []
    for span, weight in zip(_spans(counts), weights, strict=True):
        own, out = rows[span], y[span]
        tasks += [(own[a:b], weight, out[a:b]) for a, b in matmul_spans(len(own), own.size * weight.shape[1])]
    run(_rows_times, tasks)
    return from_numpy(y)


def grouped_linear_forward(x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    return _by_weight(x, [array_of(weight).T for weight in weights], counts)


def grouped_linear_input_gradient(dy: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    return _by_weight(dy, [array_of(weight) for weight in weights], counts)


def grouped_linear_weight_gradient(
    dy: Tensor, x: Tensor, counts: Sequence[int], out: Sequence[Tensor | None], accumulate: Sequence[bool]
) -> list[Tensor]:
    dy_rows, x_rows = rows_of(dy), rows_of(x)
    shape = dy_rows.shape[1], x_rows.shape[1]
    gradients = [gradient_memory(memory, shape, dy_rows.dtype) for memory in out]
    tasks = []
    for span, gradient, accumulated in zip(_spans(counts), gradients, accumulate, strict=True):
        left, right = dy_rows[span], x_rows[span]
        spans = matmul_spans(shape[0], left.size * shape[1])
        if len(left):
            tasks += [(left[:, a:b], right, gradient[a:b], accumulated) for a, b in spans]
        elif not accumulated:
            gradient[...] = 0
    run(_sum_over_rows, tasks)
    return [delivered(gradient, memory) for gradient, memory in zip(gradients, out, strict=True)]


class _AddGroupedBias(Function):
    def forward(ctx: Any, y: Tensor, factors: Tensor | None, counts: Sequence[int], *biases: Tensor) -> Tensor:
        ctx.save_for_backward(*(() if factors is None else (factors,)))
        ctx.counts, ctx.biases = counts, biases
        rows, weights = rows_of(y), None if factors is None else array_of(factors)
        result = np.empty_like(rows)
        for span, bias in zip(_spans(counts), biases, strict=True):
            added = widened(array_of(bias))
            convert(widened(rows[span]) + (added if weights is None else weights[span, None] * added), result[span])
        return from_numpy(result)

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weights = array_of(ctx.saved_tensors[0]) if ctx.saved_tensors else None
        rows, sums = widened(rows_of(dy)), []
        of_factors = None if weights is None else np.empty(len(rows), np.float32)
        for span, bias in zip(_spans(ctx.counts), ctx.biases, strict=True):
            total = rows[span].sum(axis=0) if weights is None else weights[span] @ rows[span]
            sums.append(add_summed_gradient(bias, total))
            if of_factors is not None:
                np.matmul(rows[span], widened(array_of(bias)), out=of_factors[span])
        return dy, None if of_factors is None else from_numpy(of_factors), None, *sums


def add_grouped_bias(
    y: Tensor, biases: Sequence[Tensor], counts: Sequence[int], factors: Tensor | None = None
) -> Tensor:
    return _AddGroupedBias.apply(y, factors, counts, *biases)


class _WeightedActivation(Function):
    def forward(ctx: Any, x: Tensor, factors: Tensor | None, name: str) -> Tensor:
        ctx.save_for_backward(x, factors)
        ctx.name = name
        rows, weights = rows_of(x), array_of(factors)
        y = np.empty((len(rows), rows.shape[1] // (2 if gated_unit(name) else 1)), rows.dtype)

        def block(rows: Array, weights: Array, y: Array) -> None:
            activated = _activated(name, rows, y)
            activated *= weights[:, None]
            fill(y, activated)

        by_rows(block, rows, weights, y)
        return from_numpy(y)

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, factors), name = ctx.saved_tensors, ctx.name
        rows, dy_rows, weights = rows_of(x), rows_of(dy), array_of(factors)
        dx, of_factors = np.empty_like(rows), np.empty(len(rows), np.float32)

        def block(rows: Array, dy: Array, weights: Array, dx: Array, of_factors: Array) -> None:
            own, upstream, gradient = widened(rows), widened(dy), float32_for(dx)
            activated = _activated(name, own, np.empty(upstream.shape, np.float32))
            np.einsum("rf,rf->r", activated, upstream, out=of_factors)
            np.multiply(upstream, weights[:, None], out=activated)
            ENGINE.activation_gradient(name, own, None, activated, gradient, None)
            fill(dx, gradient)

        by_rows(block, rows, dy_rows, weights, dx, of_factors)
        return from_numpy(dx), from_numpy(of_factors), None


def _activated(name: str, rows: Array, out: Array) -> Array:
    """activation(rows), float32; in `out` where that is float32."""
    activated = float32_for(out)
    ENGINE.activation(name, widened(rows), None, activated)
    return activated


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    return _WeightedActivation.apply(x, factors, activation)


def _split(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    array = array_of(x)
    return tuple(from_numpy(array[span]) for span in _spans(counts))


def _joined(*parts: Tensor) -> Tensor:
    return from_numpy(np.concatenate([array_of(part) for part in parts]))


def split_rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    return Moved.apply(x, partial(_split, counts=counts), _joined)


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    return Moved.apply(*parts, _joined, partial(_split, counts=[len(part) for part in parts]))


class _SigmoidGate(Function):
    def forward(ctx: Any, y: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(y, x, weight)
        rows = rows_of(y)
        gate, result = _gate_of(x, weight), np.empty_like(rows)
        put(widened(rows) * gate[:, None], result, False)
        return from_numpy(result.reshape(y.shape))

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        y, x, weight = ctx.saved_tensors
        dy_rows, gate = widened(rows_of(dy)), _gate_of(x, weight)
        slope = np.einsum("rh,rh->r", dy_rows, widened(rows_of(y))) * gate * (1 - gate)
        own_dy, dx = np.empty_like(rows_of(y)), np.empty_like(rows_of(x))
        put(dy_rows * gate[:, None], own_dy, False)
        put(slope[:, None] * widened(array_of(weight)), dx, False)
        of_weight = add_weight_gradient(weight, partial(_put_gate_gradient, slope, x, weight))
        return from_numpy(own_dy.reshape(y.shape)), from_numpy(dx.reshape(x.shape)), of_weight


def _gate_of(x: Tensor, weight: Tensor) -> Array:
    """sigmoid(x weight^T) of each row, float32, written so that exp does not overflow."""
    logits = widened(rows_of(x)) @ widened(array_of(weight))[0]
    return 0.5 * (1 + np.tanh(0.5 * logits))


def _put_gate_gradient(slope: Array, x: Tensor, weight: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    memory = gradient_memory(out, weight.shape, array_of(weight).dtype)
    put((slope @ widened(rows_of(x)))[None], memory, accumulate)
    return delivered(memory, out)


def sigmoid_gate(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return _SigmoidGate.apply(y, x, weight)
