"""The two sweeps over a block of logits: a difference and its exponential are one primitive, of float32."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine.numpy_engine import cross_entropy as by_numpy
from pynative.memory.rounding import fill, float32_for, widened
from pynative.onednn import primitives
from pynative.onednn.arrays import layout_of
from pynative.onednn.library import Algorithm, Primitive
from pynative.onednn.primitives import Eltwise

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
    """x [r, c], y [r, 1], out [r, c] -> out = exp(x - y)."""
    column = layout_of(np.empty((len(x), 1), np.float32))
    return primitives.binary(Algorithm.SUBTRACT, layout_of(x), column, layout_of(out), _EXPONENTIAL)
