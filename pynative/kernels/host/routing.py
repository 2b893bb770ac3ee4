"""The operators of a router on the host, by the functions of `parallel_core.moe.routing`, in part a block of tokens at
a time."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.moe import routing
from parallel_core.moe.routing import Noise, RoutingRule
from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.arrays import array_or_none, as_float32, rows_of
from pynative.kernels.host.threads import by_rows
from pynative.memory.arrays import array_of
from pynative.memory.rounding import convert, widened
from pynative.tape.autograd import Function, Moved


def _by_blocks(logits: Array, out: Array, compute: Callable[..., Array], *others: Array) -> None:
    """Fill out with compute(float32 logits, *others), all of them rows, a block at a time."""
    by_rows(lambda logits, out, *others: convert(compute(widened(logits), *others), out), logits, out, *others)


def choose_experts(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None, balanced: bool = False) -> Tensor:
    rows, bias_array = rows_of(logits), array_or_none(bias)
    if balanced:
        return from_numpy(routing.best(routing.sinkhorn(widened(rows)), rule.topk))
    experts = np.empty((len(rows), rule.topk), np.int32)
    _by_blocks(rows, experts, lambda x: routing.choose(x, rule, bias_array))
    return from_numpy(experts)


class _Probabilities(Function):
    def forward(ctx: Any, logits: Tensor, experts: Tensor, rule: RoutingRule) -> Tensor:
        ctx.save_for_backward(logits, experts)
        ctx.rule = rule
        probs = np.empty(experts.shape, np.float32)
        _by_blocks(rows_of(logits), probs, lambda x, e: routing.probabilities(x, e, rule), array_of(experts))
        return from_numpy(probs)

    def backward(ctx: Any, dprobs: Tensor) -> tuple[Tensor | None, ...]:
        (logits, experts), rule = ctx.saved_tensors, ctx.rule
        rows = rows_of(logits)
        gradient = np.empty(rows.shape, rows.dtype)

        def compute(x: Array, chosen: Array, upstream: Array) -> Array:
            return routing.probabilities_gradient(x, chosen, rule, upstream)

        _by_blocks(rows, gradient, compute, array_of(experts), as_float32(dprobs))
        return from_numpy(gradient.reshape(logits.shape)), None, None


def routing_probabilities(logits: Tensor, experts: Tensor, rule: RoutingRule) -> Tensor:
    return _Probabilities.apply(logits, experts, rule)


class _Sampled(Function):
    def forward(ctx: Any, logits: Tensor, jitter: float, noise: Noise | None) -> tuple[Tensor, ...]:
        draws = routing.sample(widened(rows_of(logits)), jitter, noise)
        ctx.shape, ctx.dtype, ctx.draws = logits.shape, array_of(logits).dtype, draws
        probs = np.stack([draw.weights for draw in draws], axis=1)
        return from_numpy(probs), from_numpy(np.stack([draw.experts for draw in draws], axis=1).astype(np.int32))

    def backward(ctx: Any, dprobs: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        upstream, gradient = as_float32(dprobs), np.empty(ctx.shape, ctx.dtype)
        total: Any = sum(routing.sampled_gradient(draw, upstream[:, turn]) for turn, draw in enumerate(ctx.draws))
        convert(total.reshape(ctx.shape), gradient)
        return from_numpy(gradient), None, None


def sample_experts(logits: Tensor, jitter: float, noise: Noise | None) -> tuple[Tensor, Tensor]:
    return _Sampled.apply(logits, jitter, noise)


def drop_over_capacity(
    probs: Tensor, experts: Tensor, capacity: int | Array, by_position: bool
) -> tuple[Tensor, Tensor]:
    chosen = array_of(experts)
    kept = routing.kept_within(capacity, array_of(probs), chosen, by_position)
    marked = from_numpy(np.where(kept, chosen, np.int32(-1)))
    return Moved.apply(probs, *[lambda probs: from_numpy(array_of(probs) * kept)] * 2), marked


def load_of_experts(experts: Tensor, batch: int, number: int, groups: int | None = None) -> Tensor:
    return from_numpy(routing.load_of_sequences(array_of(experts), batch, number, groups))


def router_statistics(logits: Tensor, rule: RoutingRule, sizes: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    _, batch, number = logits.shape
    rows = rows_of(logits)
    scores, experts = np.empty(rows.shape, np.float32), np.empty((len(rows), rule.topk), np.int32)
    squares = np.zeros(len(rows), np.float32)

    def block(logits: Array, scores: Array, experts: Array, squares: Array) -> None:
        values = widened(logits)
        scores[...] = routing.normalized_scores(values, rule)
        experts[...] = routing.best(scores, rule.topk)
        if sizes:
            squares[...] = routing.log_sum_exp(values) ** 2

    by_rows(block, rows, scores, experts, squares)
    sums = scores.reshape(-1, batch, number).sum(axis=0)
    load = routing.load_of_sequences(experts, batch, number)
    return from_numpy(sums), from_numpy(load), from_numpy(squares.sum(keepdims=True).reshape(()))


class _WithLosses(Function):
    def forward(ctx: Any, logits: Tensor, weights: Tensor | None, z_weight: float, rule: RoutingRule) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.weights, ctx.z_weight, ctx.rule = weights, z_weight, rule
        return from_numpy(array_of(logits))

    def backward(ctx: Any, dlogits: Tensor) -> tuple[Tensor | None, ...]:
        (logits,) = ctx.saved_tensors
        rows, upstream = rows_of(logits), rows_of(dlogits)
        gradient = np.empty(rows.shape, upstream.dtype)
        weights = None
        if ctx.weights is not None:
            whole = np.broadcast_to(array_of(ctx.weights), logits.shape)
            weights = whole.reshape(rows.shape)

        def block(logits: Array, weights: Array | None, upstream: Array, gradient: Array) -> None:
            added = routing.loss_gradient(widened(logits), weights, ctx.z_weight, ctx.rule)
            convert(widened(upstream) + added, gradient)

        by_rows(block, rows, weights, upstream, gradient)
        return from_numpy(gradient.reshape(logits.shape)), None, None, None


def with_router_losses(logits: Tensor, weights: Tensor | None, z_weight: float, rule: RoutingRule) -> Tensor:
    return _WithLosses.apply(logits, weights, z_weight, rule)
