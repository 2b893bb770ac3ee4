"""Forms of single operators that keep little for their backward, of MindSpore operators: what a CPU has for fused ones.

Where the composed form leaves every intermediate result on the tape, these keep the input and compute again.
"""

from mindspore import Tensor, ops

from pynative.autograd import Function, add_weight_gradient
from pynative.kernels.contract.table import Table, table
from pynative.kernels.ops import activation as composed
from pynative.kernels.ops import widened
from pynative.kernels.ops.blocked_attention import attention
from pynative.kernels.ops.experts import weighted
from pynative.kernels.ops.linear import delivered
from pynative.kernels.ops.norm import scale
from pynative.kernels.ops.rotary import rotate


class _Rotary(Function):
    """Nothing of x is kept: a rotation's gradient is the rotation back."""

    @staticmethod
    def forward(ctx, x, cos, sin, interleaved, start):
        ctx.setting = (cos, sin, interleaved, start)
        return rotate(x, *ctx.setting, inverse=False)

    @staticmethod
    def backward(ctx, dy):
        return rotate(dy, *ctx.setting, inverse=True), None, None, None, None


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, start: int = 0) -> Tensor:
    return _Rotary.apply(x, cos, sin, interleaved, start)


class _SwiGlu(Function):
    """silu(gate) up (Shazeer, 2020); with p = sigmoid(gate), silu' = p (1 + gate (1 - p))."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return composed.activated(x, "swiglu")

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        gate, up = ops.chunk(x, 2, -1)
        p = ops.sigmoid(gate)
        return ops.cat((dy * up * p * (1 + gate * (1 - p)), dy * gate * p), -1)


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    if activation != "swiglu":
        return composed.bias_activation(x, bias, activation)
    return _SwiGlu.apply(x if bias is None else x + bias)


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    return weighted(bias_activation, x, factors, activation)


class _RmsNorm(Function):
    """With r = 1 / sqrt(mean(x^2) + epsilon), x^ = x r and g = dy weight:
    dx = r (g - x^ mean(g x^)), dweight = sum dy x^."""

    @staticmethod
    def forward(ctx, x, weight, epsilon, zero_centered):
        inverse = ops.rsqrt(ops.mean(ops.square(x), -1, True) + epsilon)
        ctx.save_for_backward(x, inverse)
        ctx.weight, ctx.zero_centered = weight, zero_centered
        return x * inverse * scale(weight, zero_centered)

    @staticmethod
    def backward(ctx, dy):
        x, inverse = ctx.saved_tensors
        normalized = x * inverse
        share = dy * scale(ctx.weight, ctx.zero_centered)
        dx = inverse * (share - normalized * ops.mean(share * normalized, -1, True))
        product = (dy * normalized).reshape(-1, x.shape[-1])

        def gradient(out: Tensor | None, accumulate: bool) -> Tensor:
            return delivered(product.sum(0), out, accumulate)

        return dx, add_weight_gradient(ctx.weight, gradient), None, None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    return _RmsNorm.apply(x, weight, epsilon, zero_centered)


def forms(input_layout: str) -> Table:
    """The frugal forms. The layout is a fused attention operator's, which a CPU has not."""
    return widened.of(table(attention, rotary, bias_activation, weighted_activation, rms_norm))
