"""Sums, cross entropy's exponentials and an optimizer's update by oneDNN's binary primitives, with operations on their
results fused into them.

An update takes three passes over memory, one for each average and one for the parameter from both; each works in
place, without arrays for what lies between. Factors that change from step to step come in as arrays of one entry, so
that primitives are made once.
"""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.interface import AdamwStep
from pynative.kernels.host.engine.numpy_engine import sweeps as by_numpy
from pynative.memory.rounding import fill, float32_for, widened
from pynative.onednn import primitives
from pynative.onednn.layouts import layout_of, row_layout
from pynative.onednn.library import Algorithm, Layout, Primitive
from pynative.onednn.primitives import Binary, Eltwise, Sum


def add(x: Array, bias: Array | None, mask: Array | None, residual: Array | None, out: Array) -> bool:
    """Fill out with (x + bias) mask + residual, without those that are None, and return True; False, and nothing done,
    where oneDNN cannot or bias, mask and residual are all None."""
    steps = [(Algorithm.ADD, bias), (Algorithm.MULTIPLY, mask), (Algorithm.ADD, residual)]
    if residual is not None and mask is None and residual.dtype != x.dtype:
        # The result must have the first operand's type; the others may have any.
        x, steps = residual, [(Algorithm.ADD, x), (Algorithm.ADD, bias)]
    given = [(algorithm, array) for algorithm, array in steps if array is not None]
    if not given:
        return False
    (algorithm, second), *more = given
    post_ops = tuple(Binary(each, _layout(array)) for each, array in more)
    primitive = primitives.binary(algorithm, layout_of(x), _layout(second), layout_of(out), post_ops)
    if primitive is None:
        return False
    primitive(x, second, out, *(array for _, array in more))
    return True


def _layout(array: Array) -> Layout:
    return row_layout(array) if array.ndim == 1 else layout_of(array)


_EXPONENTIAL = (Eltwise(Algorithm.EXP),)


def logit_statistics(x: Array, maximum: Array, total: Array) -> None:
    scores = widened(x)
    exponentials = np.empty(x.shape, np.float32) if scores is x else scores
    primitive = _exponential_of_difference(scores, exponentials)
    if primitive is None:
        return by_numpy.logit_statistics(x, maximum, total)
    np.max(scores, axis=1, out=maximum)
    primitive(scores, maximum[:, None], exponentials)
    np.matmul(exponentials, np.ones(x.shape[1], np.float32), out=total)


def weighted_exponentials(x: Array, maximum: Array, weight: Array, out: Array) -> None:
    scores = widened(x)
    result = scores if scores is not x else float32_for(out)
    primitive = _exponential_of_difference(scores, result)
    if primitive is None:
        return by_numpy.weighted_exponentials(x, maximum, weight, out)
    primitive(scores, maximum[:, None], result)
    result *= weight[:, None]
    fill(out, result)


def _exponential_of_difference(x: Array, out: Array) -> Primitive | None:
    """The primitive that fills out with exp(x - y), x and out [r, c], y [r, 1]; None where oneDNN cannot."""
    column = layout_of(np.empty((len(x), 1), np.float32))
    return primitives.binary(Algorithm.SUBTRACT, layout_of(x), column, layout_of(out), _EXPONENTIAL)


def adamw(param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, step: AdamwStep) -> bool:
    """Update in place as `Engine.adamw` does and return True; False, and nothing changed, where oneDNN has no fast way,
    and for a decay of 0.

    param = decay (param + m / (sqrt(v) + e) c), m and v the new averages, e = epsilon / inverse_correction, c =
    -step_size / inverse_correction / decay.
    """
    if not step.decay:
        return False
    one, row = row_layout(_entry(1.0)), row_layout(param)
    multiply = Algorithm.MULTIPLY
    scaled, added = Binary(multiply, one), Binary(Algorithm.ADD, row)
    average = primitives.binary(multiply, row, one, row, (Sum(step.beta1),))
    square = primitives.binary(multiply, row, one, row, (Eltwise(Algorithm.SQUARE), Sum(step.beta2)))
    moved = (
        Eltwise(Algorithm.SQRT), Binary(Algorithm.ADD, one), Eltwise(Algorithm.POWER, 1.0, -1.0),
        Binary(multiply, row), scaled, added, scaled,
    )  # fmt: skip
    update = primitives.binary(multiply, row, one, row, moved)
    if average is None or square is None or update is None:
        return False
    epsilon = _entry(step.epsilon / step.inverse_correction)
    factor = _entry(-step.step_size / step.inverse_correction / step.decay)
    average(grad, _entry(step.gradient_factor), exp_avg)
    square(grad, _entry(step.square_factor), exp_avg_sq)
    update(exp_avg_sq, _entry(1.0), param, epsilon, exp_avg, factor, param, _entry(step.decay))
    return True


def _entry(value: float) -> Array:
    return np.array([value], np.float32)
