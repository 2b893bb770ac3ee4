"""Optimizer updates and sums over flat buffers, in place, a cache-sized chunk at a time, on the host."""

from collections.abc import Callable
from math import isfinite, sqrt

import numpy as np
from mindspore import Tensor

from pynative.kernels.host.arrays import array_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.engine.interface import AdamwStep
from pynative.kernels.host.threads import run, spans
from pynative.rounding import convert, put, widened

CHUNK = 256 * 1024
"""Elements of a chunk. An AdamW update takes a thread 0.9 ns an element by oneDNN's three sweeps over it, 1.1 in chunks
of a quarter of that, and 1.8 by numpy's thirteen; the bytes alone would take about 0.7."""

SUM_CHUNK = 64 * 1024
"""Elements that are summed in float32; the sums of chunks are added in float64."""


def _in_chunks(update: Callable[..., None], *buffers: Tensor | None) -> None:
    """Call `update` on corresponding chunks of the buffers' memory; None stays None."""
    arrays = [None if buffer is None else array_of(buffer).reshape(-1) for buffer in buffers]

    def chunk(start: int, stop: int) -> None:
        update(*(None if array is None else array[start:stop] for array in arrays))

    assert arrays[0] is not None
    run(chunk, spans(arrays[0].size, CHUNK))


def adamw_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, learning_rate: float, beta1: float,
    beta2: float, epsilon: float, weight_decay: float, step: int, grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    factors = AdamwStep(
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        gradient_factor=(1 - beta1) * grad_scale,
        square_factor=sqrt(1 - beta2) * grad_scale,
        inverse_correction=1 / sqrt(1 - beta2**step),
        step_size=learning_rate / (1 - beta1**step),
        decay=1 - learning_rate * weight_decay,
    )

    def update(p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, rounded: np.ndarray | None) -> None:
        ENGINE.adamw(p, widened(g), m, v, factors)
        if rounded is not None:
            convert(p, rounded)

    _in_chunks(update, param, grad, exp_avg, exp_avg_sq, model_param)


def sgd_(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor, *, learning_rate: float, momentum: float,
    weight_decay: float, grad_scale: float = 1.0, model_param: Tensor | None = None,
) -> None:  # fmt: skip
    def update(p: np.ndarray, g: np.ndarray, buffer: np.ndarray, rounded: np.ndarray | None) -> None:
        scratch = widened(g) * np.float32(grad_scale)
        if weight_decay:
            scratch += np.float32(weight_decay) * p
        buffer *= np.float32(momentum)
        buffer += scratch
        np.multiply(buffer, np.float32(learning_rate), out=scratch)
        p -= scratch
        if rounded is not None:
            convert(p, rounded)

    _in_chunks(update, param, grad, momentum_buffer, model_param)


def _partial_sums(x: Tensor, measure: Callable[[np.ndarray], float]) -> np.ndarray:
    """`measure` of each chunk of x, in float64."""
    array = array_of(x).reshape(-1)
    chunks = spans(array.size, SUM_CHUNK)
    partial = np.zeros(len(chunks), np.float64)

    def chunk(index: int, start: int, stop: int) -> None:
        partial[index] = measure(widened(array[start:stop]))

    run(chunk, [(index, *span) for index, span in enumerate(chunks)])
    return partial


def squared_norm(x: Tensor) -> float:
    return float(_partial_sums(x, _sum_of_squares).sum())


def _sum_of_squares(chunk: np.ndarray) -> float:
    total = float(np.dot(chunk, chunk))
    if isfinite(total):
        return total
    wide = chunk.astype(np.float64)
    return float(np.dot(wide, wide))


def add_(x: Tensor, y: Tensor) -> None:
    def update(part: np.ndarray, other: np.ndarray) -> None:
        put(widened(other), part, accumulate=True)

    _in_chunks(update, x, y)


def scale_(x: Tensor, factor: float) -> None:
    def update(part: np.ndarray) -> None:
        put(widened(part) * np.float32(factor), part, accumulate=False)

    _in_chunks(update, x)


def fill_(x: Tensor, value: float) -> None:
    def update(part: np.ndarray) -> None:
        part.fill(value)

    _in_chunks(update, x)
