"""Heads out of Megatron's fused q/k/v rows, and rotary position embedding, of MindSpore operators."""

from itertools import accumulate

from mindspore import Tensor, ops

from parallel_core.fused_rows import heads_of_group
from pynative.autograd import Function
from pynative.kernels.ops.elementwise import cast


class _SplitQkv(Function):
    """The tape's own backward would make three tensors as wide as the input, zero beside their part, and add them."""

    @staticmethod
    def forward(ctx, qkv, groups, heads, head_size):
        *leading, _ = qkv.shape
        ctx.shape, ctx.heads = (*leading, groups, sum(heads), head_size), heads
        rows, firsts = qkv.reshape(ctx.shape), accumulate(heads, initial=0)
        parts = [rows.narrow(-2, first, n) for first, n in zip(firsts, heads, strict=False)]
        return tuple(part.reshape(*leading, -1, head_size) for part in parts)

    @staticmethod
    def backward(ctx, *gradients):
        *leading, groups, _, head_size = ctx.shape
        parts = [g.reshape(*leading, groups, n, head_size) for g, n in zip(gradients, ctx.heads, strict=True)]
        return ops.cat(parts, -2).reshape(*leading, -1), None, None, None


def split_qkv(qkv: Tensor, groups: int, heads_per_group: int, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    return _SplitQkv.apply(qkv, groups, heads_of_group(heads_per_group), head_size)


def _rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """Each plane turned by 90 degrees: (x1, x2) -> (-x2, x1)."""
    if interleaved:
        return ops.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    one, two = ops.chunk(x, 2, -1)
    return ops.cat((-two, one), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, start: int, inverse: bool) -> Tensor:
    """As `rotary` says; `inverse` applies the transpose of that matrix, which is its gradient."""
    shape = (x.shape[0], -1, 1, cos.shape[-1])
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    stop = start + cos.shape[-1]
    turning = x[..., start:stop]
    crossed = -_rotate_half(turning * sin, interleaved) if inverse else _rotate_half(turning, interleaved) * sin
    turned = cast(turning * cos + crossed, x.dtype)  # The angles are float32, and so are the products.
    return between(x, start, turned)


def between(x: Tensor, start: int, middle: Tensor) -> Tensor:
    """x with `middle` in place of its elements from `start` on."""
    stop = start + middle.shape[-1]
    around = (x[..., :start], middle, x[..., stop:])
    parts = [part for part in around if part.shape[-1]]
    return ops.cat(parts, -1) if len(parts) > 1 else middle


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0) -> Tensor:
    return rotate(x, cos, sin, interleaved, start, inverse=False)
