"""Heads out of Megatron's fused q/k/v rows, and rotary position embedding, of MindSpore operators."""

from functools import partial

from mindspore import Tensor, ops

from parallel_core.attention.fused_rows import heads_of_group
from pynative.kernels.ops.elementwise import cast, widened_on_cpu
from pynative.tape.autograd import Moved


def _split(qkv: Tensor, groups: int, heads: tuple[int, int, int], head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    leading, (m, n, o) = qkv.shape[:-1], heads
    rows = qkv.reshape(*leading, groups, m + n + o, head_size)
    q, k, v = rows.narrow(-2, 0, m), rows.narrow(-2, m, n), rows.narrow(-2, m + n, o)
    return q.reshape(*leading, -1, head_size), k.reshape(*leading, -1, head_size), v.reshape(*leading, -1, head_size)


def _joined(dq: Tensor, dk: Tensor, dv: Tensor, groups: int) -> Tensor:
    """Megatron's fused rows [..., g * (n/g + 2) * d] of q, k and v heads (or their gradients); the inverse of
    `split_qkv`."""
    leading, head_size = dq.shape[:-2], dq.shape[-1]
    parts = [x.reshape(*leading, groups, x.shape[-2] // groups, head_size) for x in (dq, dk, dv)]
    return ops.cat(parts, -2).reshape(*leading, -1)


@widened_on_cpu("qkv")
def split_qkv(qkv: Tensor, groups: int, heads_per_group: int, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    # The tape's own backward would make three zero-padded tensors as wide as the input, and add them.
    split = partial(_split, groups=groups, heads=heads_of_group(heads_per_group), head_size=head_size)
    return Moved.apply(qkv, split, partial(_joined, groups=groups))


def _rotate_half(x: Tensor, interleaved: bool) -> Tensor:
    """Each plane (x1, x2) of x turned by 90 degrees: (-x2, x1)."""
    if interleaved:
        return ops.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape)
    one, two = ops.chunk(x, 2, -1)
    return ops.cat((-two, one), -1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, start: int, *, inverse: bool) -> Tensor:
    """x with the r elements from `start` on rotated as `rotary` says; inverse: by the transpose of that rotation, which
    is its gradient."""
    shape = (x.shape[0], -1, 1, cos.shape[-1])
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    stop = start + cos.shape[-1]
    turning = x[..., start:stop]
    crossed = -_rotate_half(turning * sin, interleaved) if inverse else _rotate_half(turning, interleaved) * sin
    turned = cast(turning * cos + crossed, x.dtype)  # The angles are float32, and so are the products.
    return between(x, start, turned)


def between(x: Tensor, start: int, middle: Tensor) -> Tensor:
    """x with `middle` in place of as many elements of its last axis, from `start` on."""
    stop = start + middle.shape[-1]
    if stop < x.shape[-1]:
        middle = ops.cat((middle, x[..., stop:]), -1)
    return ops.cat((x[..., :start], middle), -1) if start else middle


@widened_on_cpu("x")
def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0) -> Tensor:
    # The backward needs nothing of x: it rotates the gradient back.
    rotate = partial(_rotate, cos=cos, sin=sin, interleaved=interleaved, start=start)
    return Moved.apply(x, partial(rotate, inverse=False), partial(rotate, inverse=True))
