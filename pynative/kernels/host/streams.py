"""Hyper-connections on the host: streams are read and written a block of tokens at a time, computed in float32; the
backward of reading computes the weights of streams again.

r tokens of a block; other letters are those of `contract/streams.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.numerics.dtypes import Array
from parallel_core.numerics.hyper_connections import (
    StreamRule,
    StreamWeights,
    stream_weights,
    stream_weights_gradient,
)
from pynative.kernels.host.arrays import add_summed_gradient, as_float32, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import by_rows, row_blocks, run
from pynative.memory.rounding import fill, widened
from pynative.tape.autograd import Function


class _Repeat(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, streams: int) -> Tensor:
        ctx.streams = streams
        return from_numpy(np.tile(rows_of(x), (1, streams)).reshape(*x.shape[:-1], -1))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows = rows_of(dy)
        total = np.empty((len(rows), rows.shape[1] // ctx.streams), rows.dtype)
        fill(total, widened(rows).reshape(len(rows), ctx.streams, -1).sum(axis=1))
        return from_numpy(total.reshape(*dy.shape[:-1], -1)), None


def repeat_streams(x: Tensor, streams: int) -> Tensor:
    return _Repeat.apply(x, streams)


class _Linear:
    """The linear of hyper-connections for a block of tokens x [r, n h], float32; parameters: (weight, base, scale), as
    in `kernels.read_streams`. `shifted` [m, r] has its results."""

    def __init__(self, x: Array, parameters: Sequence[Array], rule: StreamRule) -> None:
        weight, base, scale = parameters
        self.rule, self.scale = rule, scale
        self.inverse = 1 / np.sqrt(np.einsum("rc,rc->r", x, x) / x.shape[1] + np.float32(rule.norm_epsilon))
        product = np.empty((len(x), rule.width), np.float32)
        ENGINE.matmul(x, weight.T, product)
        self.normed = np.ascontiguousarray(product.T) * self.inverse
        """The products x weight^T / rms(x), [m, r]."""
        self.shifted = base[:, None] + self.normed
        for factor, group in zip(scale, rule.groups, strict=True):
            self.shifted[group] = base[group, None] + factor * self.normed[group]

    def gradients(self, du: Array) -> tuple[Array, Array, Array, Array]:
        """(The gradient of x weight^T [m, r]; the factor [r] that, divided by n h, multiplies each row's x in the part
        of its gradient that comes through rms(x); the gradient of base [m]; that of scale, one number for each group of
        results), all from du, the gradient of the results `shifted` [m, r]."""
        of_scale = [float((du[group] * self.normed[group]).sum(dtype=np.float64)) for group in self.rule.groups]
        of_base, of_normed = du.sum(axis=1, dtype=np.float64), np.empty_like(du)
        for factor, group in zip(self.scale, self.rule.groups, strict=True):
            np.multiply(du[group], factor, out=of_normed[group])
        by_x = -(of_normed * self.normed).sum(axis=0) * self.inverse**2
        return of_normed * self.inverse, by_x, of_base, np.array(of_scale, np.float32)


def _streams(x: Array, count: int) -> list[Array]:
    """The n = `count` residual streams of x [r, n h], as views [r, h]."""
    width = x.shape[1] // count
    return [x[:, start : start + width] for start in range(0, x.shape[1], width)]


class _Read(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> Any:
        ctx.save_for_backward(x)
        ctx.parameters, ctx.rule = (weight, base, scale), rule
        rows, n, given = rows_of(x), rule.streams, tuple(map(as_float32, ctx.parameters))
        y = np.empty((len(rows), rows.shape[1] // n), rows.dtype)
        weights = np.empty((len(rows), rule.width - n), np.float32)

        def block(x: Array, y: Array, weights: Array) -> None:
            wide = widened(x)
            pre, post, comb = stream_weights(_Linear(wide, given, rule).shifted, rule)
            total = pre[0][:, None] * _streams(wide, n)[0]
            for factors, stream in zip(pre[1:], _streams(wide, n)[1:], strict=True):
                total += factors[:, None] * stream
            fill(y, total)
            if post is not None and comb is not None:
                weights[:, :n], weights[:, n:] = post.T, comb.reshape(n * n, -1).T

        by_rows(block, rows, y, weights)
        lead = x.shape[:-1]
        collapsed = from_numpy(y.reshape(*lead, -1))
        return (collapsed, from_numpy(weights.reshape(*lead, -1))) if rule.iterations else collapsed

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dweights: Tensor | None = None) -> tuple[Tensor | None, ...]:
        (x,), (weight, base, scale), rule = ctx.saved_tensors, ctx.parameters, ctx.rule
        rows, n, given = rows_of(x), rule.streams, tuple(map(as_float32, ctx.parameters))
        upstream = np.zeros((len(rows), 0), np.float32) if dweights is None else rows_of(dweights)
        dx, of_rows = np.empty_like(rows), rows_of(dy)
        blocks = row_blocks(len(rows), rows.shape[1] * 4)
        sums = [tuple(np.zeros(each.shape, np.float32) for each in given) for _ in blocks]

        def block(number: int, start: int, stop: int) -> None:
            wide, dy, own = widened(rows[start:stop]), widened(of_rows[start:stop]), upstream[start:stop].T
            linear = _Linear(wide, given, rule)
            streams, pre = _streams(wide, n), stream_weights(linear.shifted[:n], _last(rule)).pre
            dpre = np.stack([np.einsum("rh,rh->r", dy, stream) for stream in streams])
            others = (own[:n], own[n:].reshape(n, n, -1)) if rule.iterations else (None, None)
            du = stream_weights_gradient(linear.shifted, rule, StreamWeights(dpre, *others))
            of_products, by_x, of_base, of_scale = linear.gradients(du)
            total = wide * (by_x / wide.shape[1])[:, None]
            ENGINE.matmul(of_products.T, given[0], total, accumulate=True)
            for factors, part in zip(pre, _streams(total, n), strict=True):
                part += factors[:, None] * dy
            fill(dx[start:stop], total)
            ENGINE.matmul(of_products, wide, sums[number][0])
            sums[number][1][:], sums[number][2][:] = of_base, of_scale

        run(block, [(number, *span) for number, span in enumerate(blocks)])
        totals = [np.sum(each, axis=0) for each in zip(*sums, strict=True)]
        gradients = map(add_summed_gradient, (weight, base, scale), totals)
        return from_numpy(dx.reshape(x.shape)), *gradients, None


def _last(rule: StreamRule) -> StreamRule:
    """The rule for collapsing streams at the end of the model, from that of a layer: weights of reading alone."""
    return StreamRule(rule.streams, 0, rule.epsilon, rule.norm_epsilon)


def collapse_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> Tensor:
    return _Read.apply(x, weight, base, scale, _last(rule))


def read_streams(x: Tensor, weight: Tensor, base: Tensor, scale: Tensor, rule: StreamRule) -> tuple[Tensor, Tensor]:
    results: tuple[Tensor, Tensor] = _Read.apply(x, weight, base, scale, rule)
    return results


class _Write(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, weights)
        rows, n = rows_of(x), x.shape[-1] // y.shape[-1]
        out = np.empty_like(rows)

        def block(x: Array, y: Array, weights: Array, out: Array) -> None:
            before, wide, comb = _streams(widened(x), n), widened(y), weights[:, n:]
            for k, place in enumerate(_streams(out, n)):
                total = weights[:, k, None] * wide
                for j, stream in enumerate(before):
                    total += comb[:, j * n + k, None] * stream
                fill(place, total)

        by_rows(block, rows, rows_of(y), rows_of(weights), out)
        return from_numpy(out.reshape(x.shape))

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weights = ctx.saved_tensors
        rows, outputs, given, n = rows_of(x), rows_of(y), rows_of(weights), x.shape[-1] // y.shape[-1]
        dx, dy, dweights = np.empty_like(rows), np.empty_like(outputs), np.empty_like(given)

        def block(x: Array, y: Array, w: Array, dout: Array, dx: Array, dy: Array, dw: Array) -> None:
            before, wide, upstream = _streams(widened(x), n), widened(y), _streams(widened(dout), n)
            comb, dcomb, total = w[:, n:], dw[:, n:], w[:, 0, None] * upstream[0]
            for k in range(1, n):
                total += w[:, k, None] * upstream[k]
            fill(dy, total)
            for k, gradient in enumerate(upstream):
                dw[:, k] = np.einsum("rh,rh->r", gradient, wide)
                for j, stream in enumerate(before):
                    dcomb[:, j * n + k] = np.einsum("rh,rh->r", gradient, stream)
            for j, place in enumerate(_streams(dx, n)):
                total = comb[:, j * n, None] * upstream[0]
                for k in range(1, n):
                    total += comb[:, j * n + k, None] * upstream[k]
                fill(place, total)

        by_rows(block, rows, outputs, given, rows_of(dout), dx, dy, dweights)
        return (
            from_numpy(dx.reshape(x.shape)),
            from_numpy(dy.reshape(y.shape)),
            from_numpy(dweights.reshape(weights.shape)),
        )


def write_streams(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return _Write.apply(x, y, weights)
