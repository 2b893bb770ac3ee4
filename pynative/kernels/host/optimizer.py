"""Updates in place of flat buffers, and sums over them, CHUNK elements at a time, on the host."""

from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative.kernels.contract.flat_buffers import AdamStep, Formula
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.engine.interface import AdamwStep
from pynative.kernels.host.threads import run, spans
from pynative.memory.arrays import array_of, writable
from pynative.memory.rounding import bits, convert, fill, put, widened

CHUNK = 256 * 1024
"""Elements of a chunk. An AdamW update takes a thread 0.9 ns an element by oneDNN's three sweeps over it, 1.1 in chunks
of a quarter of that, and 1.8 by numpy's thirteen; the bytes alone would take about 0.7."""


def _in_chunks(update: Callable[..., None], *buffers: Tensor | None) -> None:
    """Call `update` with corresponding chunks of the buffers' arrays, over the threads; None stays None."""
    arrays = [None if buffer is None else writable(buffer).reshape(-1) for buffer in buffers]

    def chunk(start: int, stop: int) -> None:
        update(*(None if array is None else array[start:stop] for array in arrays))

    assert arrays[0] is not None
    run(chunk, spans(arrays[0].size, CHUNK))


def _factors(settings: AdamStep) -> AdamwStep:
    """The factors of `Engine.adamw` for a step; with an L2 penalty the gradient has it and its own scale already
    (`_penalized`)."""
    first, second = settings.corrections
    grad_scale = 1.0 if settings.penalty else settings.grad_scale
    return AdamwStep(
        beta1=settings.beta1,
        beta2=settings.beta2,
        epsilon=settings.epsilon,
        gradient_factor=(1 - settings.beta1) * grad_scale,
        square_factor=sqrt(1 - settings.beta2) * grad_scale,
        inverse_correction=1 / sqrt(second),
        step_size=settings.learning_rate / first,
        decay=settings.decay,
    )


def _penalized(grad: Array, param: Array, settings: AdamStep) -> Array:
    """The gradient as float32: with an L2 penalty grad_scale grad + penalty param, else without its scale, which
    `_factors` has then."""
    if not settings.penalty:
        return widened(grad)
    scaled = widened(grad) * np.float32(settings.grad_scale)
    scaled += np.float32(settings.penalty) * param
    return scaled


def adam_(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, settings: AdamStep,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    factors = _factors(settings)

    def update(p: Array, g: Array, m: Array, v: Array, rounded: Array | None) -> None:
        average, square = widened(m), widened(v)
        ENGINE.adamw(p, _penalized(g, p, settings), average, square, factors)
        fill(m, average)
        fill(v, square)
        if rounded is not None:
            convert(p, rounded)

    _in_chunks(update, param, grad, exp_avg, exp_avg_sq, model_param)


def update_(
    formula: Formula, param: Tensor, grad: Tensor, moments: Sequence[Tensor], grad_scale: float = 1.0,
    model_param: Tensor | None = None,
) -> None:  # fmt: skip
    def update(p: Array, g: Array, rounded: Array | None, *kept: Array) -> None:
        updated = formula(np, p, widened(g) * np.float32(grad_scale), *map(widened, kept))
        for place, value in zip((p, *kept), updated, strict=True):
            convert(value, place)
        if rounded is not None:
            convert(p, rounded)

    _in_chunks(update, param, grad, model_param, *moments)


def combine_(x: Tensor, y: Tensor, x_factor: float, y_factor: float, model_param: Tensor | None = None) -> None:
    def update(part: Array, other: Array, rounded: Array | None) -> None:
        total = widened(other) * np.float32(y_factor)
        if x_factor:
            total += widened(part) * np.float32(x_factor)
        convert(total, part)
        if rounded is not None:
            convert(total, rounded)

    _in_chunks(update, x, y, model_param)


def clamp_(x: Tensor, limit: float) -> None:
    def update(part: Array) -> None:
        put(np.clip(widened(part), np.float32(-limit), np.float32(limit)), part, accumulate=False)

    _in_chunks(update, x)


def squared_norm(x: Tensor) -> float:
    array = array_of(x).reshape(-1)
    chunks = spans(array.size, CHUNK)
    squares = np.zeros(len(chunks), np.float64)

    def chunk(index: int, start: int, stop: int) -> None:
        wide = widened(array[start:stop]).astype(np.float64)
        squares[index] = np.dot(wide, wide)

    run(chunk, [(index, *span) for index, span in enumerate(chunks)])
    return float(squares.sum())


def all_finite(x: Tensor) -> Tensor:
    return Tensor.from_numpy(np.array([np.isfinite(squared_norm(x))]))


def add_(x: Tensor, y: Tensor) -> None:
    def update(part: Array, other: Array) -> None:
        put(widened(other), part, accumulate=True)

    _in_chunks(update, x, y)


def scale_(x: Tensor, factor: float) -> None:
    def update(part: Array) -> None:
        put(widened(part) * np.float32(factor), part, accumulate=False)

    _in_chunks(update, x)


def fill_(x: Tensor, value: float) -> None:
    def update(part: Array) -> None:
        bits(part).fill(bits(np.array(value, part.dtype)).item())

    _in_chunks(update, x)
