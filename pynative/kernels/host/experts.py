"""Linears of several weights over rows sorted by weight, and what experts do to their rows, on the host."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate as running_sum

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.activations import GATES
from pynative.autograd import Function, add_weight_gradient
from pynative.kernels.host.arrays import add_summed_gradient, array_of, delivered, gradient_memory, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import matmul_spans, row_blocks, run
from pynative.rounding import convert, put, widened


def _spans(counts: Sequence[int]) -> list[slice]:
    """The rows of each group."""
    ends = list(running_sum(map(int, counts)))
    return [slice(end - int(count), end) for end, count in zip(ends, counts, strict=True)]


def _products(products: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]) -> None:
    """(left, right, out, accumulate) each; threads share out spans of rows of all of them."""
    tasks = []
    for left, right, out, accumulated in products:
        work = left.shape[0] * left.shape[1] * right.shape[1]
        tasks += [(left[a:b], right, out[a:b], accumulated) for a, b in matmul_spans(len(left), work)]
    run(lambda left, right, out, accumulated: ENGINE.matmul(left, right, out, None, accumulated), tasks)


def _by_weight(x: Tensor, weights: Sequence[np.ndarray], counts: Sequence[int]) -> Tensor:
    """Each row of x [R, k] times its group's [k, c]."""
    rows = rows_of(x)
    y = np.empty((len(rows), weights[0].shape[1]), rows.dtype)
    spans = zip(_spans(counts), weights, strict=True)
    _products((rows[span], weight, y[span], False) for span, weight in spans if span.start < span.stop)
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
    products = []
    for span, gradient, accumulated in zip(_spans(counts), gradients, accumulate, strict=True):
        if span.start < span.stop:
            products.append((dy_rows[span].T, x_rows[span], gradient, accumulated))
        elif not accumulated:
            gradient[...] = 0
    _products(products)
    return [delivered(gradient, memory) for gradient, memory in zip(gradients, out, strict=True)]


class _AddGroupedBias(Function):
    @staticmethod
    def forward(ctx, y, factors, counts, *biases):
        ctx.save_for_backward(*(() if factors is None else (factors,)))
        ctx.counts, ctx.biases = counts, biases
        rows, weights = rows_of(y), None if factors is None else array_of(factors)
        result = np.empty_like(rows)
        for span, bias in zip(_spans(counts), biases, strict=True):
            added = widened(array_of(bias))
            convert(widened(rows[span]) + (added if weights is None else weights[span, None] * added), result[span])
        return from_numpy(result)

    @staticmethod
    def backward(ctx, dy):
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
    @staticmethod
    def forward(ctx, x, factors, name):
        ctx.save_for_backward(x, factors)
        ctx.name = name
        rows, weights = rows_of(x), array_of(factors)
        y = np.empty((len(rows), rows.shape[1] // (2 if name in GATES else 1)), rows.dtype)

        def block(start: int, stop: int) -> None:
            activated = _activated(name, rows[start:stop], y[start:stop])
            activated *= weights[start:stop, None]
            if activated.base is not y:
                convert(activated, y[start:stop])

        run(block, row_blocks(len(rows), rows.shape[1] * 4))
        return from_numpy(y)

    @staticmethod
    def backward(ctx, dy):
        (x, factors), name = ctx.saved_tensors, ctx.name
        rows, dy_rows, weights = rows_of(x), rows_of(dy), array_of(factors)
        dx, of_factors = np.empty_like(rows), np.empty(len(rows), np.float32)

        def block(start: int, stop: int) -> None:
            own, upstream = widened(rows[start:stop]), widened(dy_rows[start:stop])
            activated = _activated(name, own, np.empty(upstream.shape, np.float32))
            np.einsum("rf,rf->r", activated, upstream, out=of_factors[start:stop])
            np.multiply(upstream, weights[start:stop, None], out=activated)
            gradient = dx[start:stop] if dx.dtype == np.float32 else np.empty(own.shape, np.float32)
            ENGINE.activation_gradient(name, own, None, activated, gradient, None)
            if dx.dtype != np.float32:
                convert(gradient, dx[start:stop])

        run(block, row_blocks(len(rows), rows.shape[1] * 4))
        return from_numpy(dx), from_numpy(of_factors), None


def _activated(name: str, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """activation(rows) in float32, in `out` where that has this type."""
    activated = out if out.dtype == np.float32 else np.empty(out.shape, np.float32)
    ENGINE.activation(name, widened(rows), None, activated)
    return activated


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    return _WeightedActivation.apply(x, factors, activation)


class _SplitRows(Function):
    @staticmethod
    def forward(ctx, x, counts):
        array = array_of(x)
        ctx.like, ctx.spans = (array.shape, array.dtype), _spans(counts)
        return tuple(from_numpy(array[span]) for span in ctx.spans)

    @staticmethod
    def backward(ctx, *gradients):
        dx = np.empty(*ctx.like)
        for span, gradient in zip(ctx.spans, gradients, strict=True):
            dx[span] = array_of(gradient)
        return from_numpy(dx), None


def split_rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    return _SplitRows.apply(x, counts)


class _JoinRows(Function):
    @staticmethod
    def forward(ctx, *parts):
        ctx.spans = _spans([len(part) for part in parts])
        return from_numpy(np.concatenate([array_of(part) for part in parts]))

    @staticmethod
    def backward(ctx, dy):
        array = array_of(dy)
        return tuple(from_numpy(array[span]) for span in ctx.spans)


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    return _JoinRows.apply(*parts)


class _SigmoidGate(Function):
    @staticmethod
    def forward(ctx, y, x, weight):
        ctx.save_for_backward(y, x, weight)
        rows = rows_of(y)
        gate, result = _gate_of(x, weight), np.empty_like(rows)
        put(widened(rows) * gate[:, None], result, False)
        return from_numpy(result.reshape(y.shape))

    @staticmethod
    def backward(ctx, dy):
        y, x, weight = ctx.saved_tensors
        dy_rows, gate = widened(rows_of(dy)), _gate_of(x, weight)
        slope = np.einsum("rh,rh->r", dy_rows, widened(rows_of(y))) * gate * (1 - gate)
        own_dy, dx = np.empty_like(rows_of(y)), np.empty_like(rows_of(x))
        put(dy_rows * gate[:, None], own_dy, False)
        put(slope[:, None] * widened(array_of(weight)), dx, False)
        of_weight = add_weight_gradient(weight, partial(_put_gate_gradient, slope, x, weight))
        return from_numpy(own_dy.reshape(y.shape)), from_numpy(dx.reshape(x.shape)), of_weight


def _gate_of(x: Tensor, weight: Tensor) -> np.ndarray:
    """sigmoid(x weight^T) of each row, float32; written so that exp does not overflow."""
    logits = widened(rows_of(x)) @ widened(array_of(weight))[0]
    return 0.5 * (1 + np.tanh(0.5 * logits))


def _put_gate_gradient(slope: np.ndarray, x: Tensor, weight: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    memory = gradient_memory(out, weight.shape, array_of(weight).dtype)
    put((slope @ widened(rows_of(x)))[None], memory, accumulate)
    return delivered(memory, out)


def sigmoid_gate(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return _SigmoidGate.apply(y, x, weight)
