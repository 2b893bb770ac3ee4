"""The two sweeps over a block of logits, in float32. Letters: r rows, c columns."""

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.memory.rounding import fill, float32_for, widened


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
