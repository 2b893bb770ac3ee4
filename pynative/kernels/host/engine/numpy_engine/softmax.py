"""Exponentials of scores, in float32."""

import numpy as np

from pynative.rounding import widened

Array = np.ndarray


def softmax_exponentials(x: Array, out: Array, maximum: Array, total: Array) -> None:
    scores = widened(x)
    np.max(scores, axis=1, out=maximum)
    np.subtract(scores, maximum[:, None], out=out)
    np.exp(out, out=out)
    np.sum(out, axis=1, out=total)
