"""Products of a few rows with a weight on the host: to read the weight is most of what they cost.

Of a single row BLAS computes them with its own threads: to wake a thread of the host kernels and to hand it the GIL
takes 0.1 ms, as long as a product. Of more rows OpenBLAS copies the weight first. The engine does not where the weight
is the left operand; the host's threads share its rows. Milliseconds for a weight of 1376 outputs and 512 inputs on AMD
family 25 model 1: of 1 row 0.22 with one thread and 0.20 with two; of 8 rows 0.34, and 0.68 by BLAS, with one.
"""

from collections.abc import Callable

import numpy as np

from parallel_core.numerics.dtypes import Array
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.process import blas_has_all_threads
from pynative.kernels.host.threads import matmul_spans, run, spans, thread_count


def summed(size: int, work: Callable[[slice], Array], parts: int) -> Array:
    """The sum of work(span) over `parts` spans of `size` units, each by a thread of its own."""
    found: list[Array] = []
    run(lambda start, stop: found.append(work(slice(start, stop))), spans(size, -(-size // parts)))
    return found[0] if len(found) == 1 else np.sum(found, 0)


def parts_of(x: Array) -> int:
    """By how many threads a layer is computed for x [b, h]: of a single row BLAS has them all."""
    return 1 if len(x) == 1 else thread_count()


class Product:
    """x [b, i] -> x W^T + bias [b, o], float32, for a weight [o, i] and a bias [o], whose memory it reads."""

    def __init__(self, weight: Array, bias: Array | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Array) -> Array:
        y = np.empty((len(self.weight), len(x)), np.float32)
        parts = matmul_spans(len(y), x.size * len(y)) if len(x) > 1 else ((0, len(y)),)
        run(lambda start, stop: _multiply(self.weight[start:stop], x, y[start:stop]), parts)
        return self.shifted(np.ascontiguousarray(y.T))

    def shifted(self, y: Array) -> Array:
        """y [b, o] + bias, in place."""
        if self.bias is not None:
            y += self.bias
        return y

    def outputs(self, x: Array, *chosen: slice) -> Array:
        """Some of the outputs [b, those], by the calling thread."""
        sizes = [part.stop - part.start for part in chosen]
        y, first = np.empty((sum(sizes), len(x)), np.float32), 0
        for part, size in zip(chosen, sizes, strict=True):
            _multiply(self.weight[part], x, y[first : first + size])
            if self.bias is not None:
                y[first : first + size] += self.bias[part, None]
            first += size
        return np.ascontiguousarray(y.T)

    def of_inputs(self, x: Array, chosen: slice) -> Array:
        """A share of the sum, without the bias: of some of the inputs, x [b, those]; by the calling thread."""
        y = np.empty((len(self.weight), len(x)), np.float32)
        _multiply(self.weight[:, chosen], x, y)
        return y.T


def _multiply(weight: Array, x: Array, y: Array) -> None:
    """y [o, b] = W x^T. The weight is the left operand, whose rows the engine reads where they lie."""
    if len(x) > 1:
        ENGINE.matmul(weight, x.T, y)
    else:
        with blas_has_all_threads():
            np.matmul(weight, x[0], out=y[:, 0])
