"""Float64 references of the operators, numpy only, and the means to compare operators with them.

A reference is a plain function of float64 arrays. Its gradient is taken by central differences of all elements, so a
reference has no backward of its own that could share a mistake with the operator's.
"""

from collections.abc import Callable, Sequence

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy

from parallel_core.context import SequenceLayout
from pynative.collectives import Completed
from pynative.tape.autograd import backward, leaf, recording, take_gradient
from pynative.tensor_parallel.layers import linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import Boundary

Array = np.ndarray


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def tensor(array: Array, dtype: mindspore.dtype = mindspore.float32) -> Tensor:
    return from_numpy(np.ascontiguousarray(array)).astype(dtype)


def values(x: Tensor) -> Array:
    """The tensor's values as a float32 array."""
    return x.astype(mindspore.float32).asnumpy()


def _stays(x: Tensor, group: None, async_op: bool = False):
    return Completed(x) if async_op else x


ONE_RANK = Boundary(None, _stays, _stays, SequenceLayout(), context_rank=0)
"""The boundary of a tensor-parallel region of one rank, outside of any job."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The linear layer that models have, on one rank: x [..., i], weight [o, i], bias [o] -> [..., o]."""
    return linear_with_grad_accumulation_and_async_allreduce(x, weight, bias, ONE_RANK)


def outputs_of(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def upstream(shape: Sequence[int], number: int) -> Array:
    """The gradient given for an operator's output `number`: without symmetry, of values that every floating-point type
    represents."""
    return np.round(8 * normal(*shape, seed=1000 + number)) / 8


def run_operator(
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Array],
    dtype=mindspore.float32,
    gradients: Sequence[Array] | None = None,
) -> tuple[list[Array], list[Array]]:
    """(outputs, gradients of the inputs) of an operator on the tape, from `gradients` of the outputs or `upstream`."""
    leaves = [leaf(tensor(x, dtype)) for x in inputs]
    with recording():
        # times 1: a leaf can't take a gradient that it shares with another leaf (a CPU has no Clone kernel)
        results = outputs_of(function(*(x * 1.0 for x in leaves)))
        starts = gradients or [upstream(y.shape, i) for i, y in enumerate(results)]
        backward(results, [tensor(start, y.dtype) for start, y in zip(starts, results, strict=True)])
    arrived = [take_gradient(x) for x in leaves]
    assert all(y.dtype == dtype for y in (*results, *arrived)), "an operator changed the type"
    return [values(y) for y in results], [values(g) for g in arrived]


def numerical_gradients(reference: Callable[..., Array | tuple[Array, ...]], inputs: Sequence[Array]) -> list[Array]:
    """d sum(upstream * reference(inputs)) / d inputs by central differences in float64."""
    wide = [np.array(x, np.float64) for x in inputs]

    starts = [upstream(y.shape, i) for i, y in enumerate(outputs_of(reference(*wide)))]

    def objective() -> float:
        results = outputs_of(reference(*wide))
        return sum(float((start * y).sum()) for start, y in zip(starts, results, strict=True))

    gradients = [np.zeros_like(x) for x in wide]
    for x, gradient in zip(wide, gradients, strict=True):
        for index in np.ndindex(*x.shape):
            kept, step = x[index], 1e-5
            x[index] = kept + step
            above = objective()
            x[index] = kept - step
            gradient[index] = (above - objective()) / (2 * step)
            x[index] = kept
    return gradients


def assert_equals_reference(function: Callable, reference: Callable, inputs: Sequence[Array]) -> None:
    """Assert that outputs are within 3e-6 of the float64 reference and gradients within 2e-5 of its finite differences,
    relative to the largest entry."""
    outputs, gradients = run_operator(function, inputs)
    expected = reference(*(x.astype(np.float64) for x in inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for y, wanted in zip(outputs, expected, strict=True):
        assert_close(y, wanted, 3e-6)
    for gradient, wanted in zip(gradients, numerical_gradients(reference, inputs), strict=True):
        assert_close(gradient, wanted, 2e-5)


def assert_close(actual: Array, expected: Array, tolerance: float, least: float = 0.1) -> None:
    """Assert that every element is within `tolerance` times the largest expected magnitude (at least `least`)."""
    assert actual.shape == expected.shape
    bound = tolerance * max(least, float(np.abs(expected).max(initial=0)))
    error = float(np.abs(actual - expected).max(initial=0))
    assert error <= bound, f"off by {error:.2e}, allowed {bound:.2e}"


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * weight + bias


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def softmax(x: Array) -> Array:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention(q: Array, k: Array, v: Array, scale: float, hidden: Array, kept: Array | None = None) -> Array:
    """Attention [s, b, n x e] by its definition. hidden: bool, True = masked out; kept: the dropout mask; both
    broadcast to [b, n, s, s']."""
    repeats = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, repeats, axis=2) for x in (k, v))
    scores = np.einsum("sbnd,tbnd->bnst", q, k) * scale
    probabilities = softmax(np.where(hidden, -10000.0, scores))
    if kept is not None:
        probabilities = probabilities * kept
    return np.einsum("bnst,tbnd->sbnd", probabilities, v).reshape(*q.shape[:2], -1)


def rotary(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotary embedding by the matrix of complex multiplication, plane by plane."""
    rotated = cos.shape[-1]
    cos, sin = (a.reshape(len(x), -1, 1, rotated) for a in (cos, sin))
    y = x.copy()
    for plane in range(rotated // 2):
        i, j = (2 * plane, 2 * plane + 1) if interleaved else (plane, plane + rotated // 2)
        y[..., i] = x[..., i] * cos[..., i] - x[..., j] * sin[..., i]
        y[..., j] = x[..., j] * cos[..., j] + x[..., i] * sin[..., j]
    return y
