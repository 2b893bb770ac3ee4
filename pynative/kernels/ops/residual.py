"""Dropout, and the fork and joins of branches, of MindSpore operators; masks are drawn by numpy
(`kernels.dropout`)."""

from functools import partial
from typing import Any

from mindspore import Tensor, from_numpy, ops

from pynative.kernels.dropout import Dropout, Key, Rows
from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.kernels.ops.linear import bias_gradient
from pynative.tape.autograd import Function, Moved, add_weight_gradient


def _mask(x: Tensor, rate: float, key: Key, rows: Rows | None) -> Tensor | None:
    """The dropout mask of x, float32 [s, b, h]; None without dropout."""
    return from_numpy(Dropout(rate, key, rows).mask(x.shape)) if rate else None


def _sum(x: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None) -> Tensor:
    if bias is not None:
        x = ops.add(x, bias)
    if mask is not None:
        x = cast(x * mask, x.dtype)
    return x if residual is None else cast(ops.add(residual, x), residual.dtype)


class _BiasDropoutAdd(Function):
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, residual: Tensor | None, mask: Tensor | None) -> Tensor:
        ctx.bias, ctx.mask = bias, mask
        ctx.dtype, ctx.residual_dtype = x.dtype, None if residual is None else residual.dtype
        return _sum(x, bias, residual, mask)

    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        branch = dy if ctx.mask is None else _sum(dy, None, None, ctx.mask)
        of_bias = None if ctx.bias is None else add_weight_gradient(ctx.bias, partial(bias_gradient, branch))
        return cast(branch, ctx.dtype), of_bias, None if ctx.residual_dtype is None else dy, None


@widened_on_cpu("residual", "x")
def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    rate: float = 0.0,
    key: Key | None = None,
    rows: Rows | None = None,
) -> Tensor:
    return _BiasDropoutAdd.apply(x, bias, residual, _mask(x, rate, key or (), rows))


@widened_on_cpu("x")
def dropout(x: Tensor, rate: float, key: Key, rows: Rows | None = None) -> Tensor:
    return bias_dropout_add(x, None, None, rate, key, rows) if rate else x


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    # The tape's own backward would launch one more addition.
    return Moved.apply(x, lambda x: (x, x), lambda one, other: _sum(one, None, other, None))


def join_features(x: Tensor, y: Tensor) -> Tensor:
    return ops.cat((x, y), -1)
