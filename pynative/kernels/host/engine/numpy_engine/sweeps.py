"""Sums, the passes of cross entropy over a block of logits, and an optimizer's update. Letters: r rows, c columns."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.interface import AdamwStep
from pynative.memory.rounding import fill, float32_for, widened


def add(x: Array, bias: Array | None, mask: Array | None, residual: Array | None, out: Array) -> None:
    part, result = widened(x), float32_for(out)
    if bias is not None:
        part = np.add(part, widened(bias), out=result)
    if mask is not None:
        part = np.multiply(part, mask, out=result)
    if residual is not None:
        part = np.add(part, widened(residual), out=result)
    fill(out, part)


def sum_rows(x: Array, out: Array) -> None:
    np.matmul(np.ones(len(x), np.float32), widened(x), out=out)


def logit_statistics(x: Array, maximum: Array, total: Array) -> None:
    scores = widened(x)
    np.max(scores, axis=1, out=maximum)
    shifted = np.subtract(scores, maximum[:, None])
    np.sum(np.exp(shifted, out=shifted), axis=1, out=total)


def weighted_exponentials(x: Array, maximum: Array, weight: Array, out: Array) -> None:
    result = np.subtract(widened(x), maximum[:, None], out=float32_for(out))
    np.exp(result, out=result)
    result *= weight[:, None]
    fill(out, result)


def adamw(param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, step: AdamwStep) -> None:
    """Update param and both averages in place as `interface.Engine.adamw` does, with numpy."""
    scratch = grad * np.float32(step.gradient_factor)
    exp_avg *= np.float32(step.beta1)
    exp_avg += scratch
    np.multiply(grad, np.float32(step.square_factor), out=scratch)
    np.square(scratch, out=scratch)
    exp_avg_sq *= np.float32(step.beta2)
    exp_avg_sq += scratch
    np.sqrt(exp_avg_sq, out=scratch)
    scratch *= np.float32(step.inverse_correction)
    scratch += np.float32(step.epsilon)
    np.divide(exp_avg, scratch, out=scratch)
    scratch *= np.float32(step.step_size)
    param *= np.float32(step.decay)
    param -= scratch
