"""The linear layer on the tape, made of the three matrix products of whichever implementation is in use."""

from functools import partial

from pynative import kernels
from pynative.autograd import Function, add_weight_gradient


class Linear(Function):
    """y = x weight^T + bias."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.bias = bias
        return kernels.linear_forward(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = kernels.linear_input_gradient(dy, weight) if ctx.needs_input_grad[0] else None
        dw = add_weight_gradient(weight, partial(_weight_gradient, dy, x))
        db = None if ctx.bias is None else add_weight_gradient(ctx.bias, partial(_bias_gradient, dy))
        return dx, dw, db


def _weight_gradient(dy, x, out):
    return kernels.linear_weight_gradient(dy, x, out=out)


def _bias_gradient(dy, out):
    return kernels.bias_gradient(dy, out=out)
