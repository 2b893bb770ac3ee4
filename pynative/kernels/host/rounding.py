"""16-bit types on a CPU: numpy computes in float32, so values are widened before and rounded to nearest even after.

A float32 array is used as it is, so these cost nothing where no 16-bit type is in play.
"""

import mindspore
import numpy as np

BFLOAT16 = np.dtype(mindspore.dtype_to_nptype(mindspore.bfloat16))


def widened(array: np.ndarray) -> np.ndarray:
    """The values as float32: the array itself when that is what it holds, else a copy."""
    if array.dtype == np.float32:
        return array
    if array.dtype == BFLOAT16:  # the registered cast takes 15 ns an element
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def float32_for(out: np.ndarray) -> np.ndarray:
    """Where to compute what `out` is to hold: `out` itself when it is float32, else new memory."""
    return out if out.dtype == np.float32 else np.empty(out.shape, np.float32)


def fill(out: np.ndarray, result: np.ndarray) -> None:
    """Round into `out` what was computed in `float32_for(out)`."""
    if result is not out:
        out[...] = result


def put(values: np.ndarray, out: np.ndarray, accumulate: bool) -> None:
    """float32 values into `out`, or added to what it holds; rounded once."""
    if not accumulate:
        out[...] = values
    elif out.dtype == np.float32:
        out += values
    else:
        out[...] = widened(out) + values
