"""oneDNN's primitives by what they compute, each kept for its layouts (`KEPT`). A function returns None where oneDNN is
not there, or has no fast primitive for these layouts on this CPU; its docstring lists the arrays of a call in order.

Letters: m, k, n of a product.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple

from pynative.onednn.library import (
    BACKWARD,
    FORWARD_TRAINING,
    RMS_NORM,
    SCRATCHPAD_OF_USER,
    USE_SCALE,
    USE_SHIFT,
    Algorithm,
    Argument,
    Handle,
    Layout,
    OneDnnError,
    Primitive,
    call,
    engine,
    let_go,
    library,
    made,
    once,
)


class Eltwise(NamedTuple):
    """Post operation: a function of each entry x of a result; `alpha x + beta` for Algorithm.LINEAR."""

    algorithm: Algorithm
    alpha: float = 0.0
    beta: float = 0.0


class Binary(NamedTuple):
    """Post operation: a result combined with another array, which may be broadcast. A call gives that array after the
    primitive's own arrays."""

    algorithm: Algorithm
    layout: Layout


class Sum(NamedTuple):
    """Post operation: the result is added to `factor` times what the destination held."""

    factor: float = 1.0


SUM = Sum()

PostOp = Eltwise | Binary | Sum

KEPT = 256
"""The least number of primitives of each kind that are cached, those used last: one of a product has half a megabyte of
machine code, and where a sequence grows, as in generation, every step has shapes of its own."""


def _made_once(make: Callable[..., Primitive]) -> Callable[..., Primitive | None]:
    """Cache of `make` by its arguments; None where the library has for this CPU no such primitive, or only its slow
    reference.

    oneDNN calls those "ref" and "simple:any": they compute entry by entry, a hundred times slower than numpy.
    """

    @partial(once, kept=KEPT)
    @wraps(make)
    def cached(*arguments: Any) -> Primitive | None:
        if library() is None:
            return None
        try:
            primitive = make(*arguments)
        except OneDnnError:
            return None
        return None if primitive.implementation.startswith(("ref", "simple:any")) else primitive

    return cached


def _attributes(post_ops: Sequence[PostOp] = ()) -> Handle:
    """A handle of primitive attributes with these post operations; they are freed with the handle, and a primitive made
    with them has a copy."""
    attributes = made("primitive_attr_create")
    let_go(attributes, "primitive_attr_destroy", [attributes.value or 0])
    call("primitive_attr_set_scratchpad_mode", attributes, SCRATCHPAD_OF_USER)
    chain = made("post_ops_create")
    for post_op in post_ops:
        if isinstance(post_op, Eltwise):
            alpha, beta = ctypes.c_float(post_op.alpha), ctypes.c_float(post_op.beta)
            call("post_ops_append_eltwise", chain, int(post_op.algorithm), alpha, beta)
        elif isinstance(post_op, Binary):
            call("post_ops_append_binary", chain, int(post_op.algorithm), post_op.layout.descriptor)
        else:
            call("post_ops_append_sum", chain, ctypes.c_float(post_op.factor), 0, 0)
    call("primitive_attr_set_post_ops", attributes, chain)
    call("post_ops_destroy", chain)
    return attributes


def _post_arguments(post_ops: Sequence[PostOp]) -> list[tuple[int, Layout]]:
    return [
        (Argument.POST_OP * (index + 1) | Argument.SOURCE_1, post_op.layout)
        for index, post_op in enumerate(post_ops)
        if isinstance(post_op, Binary)
    ]


@_made_once
def product(
    left: Layout, right: Layout, result: Layout, bias: Layout | None = None, post_ops: tuple[PostOp, ...] = ()
) -> Primitive:
    """left [..., m, k] right [..., k, n] + bias [..., 1, n], then `post_ops` on that in order -> result [..., m, n].

    None where oneDNN has no fast primitive. Arrays of a call: left, right, result, bias where there is one, then those
    of binary post operations.
    """
    described = made(
        "matmul_primitive_desc_create", engine(), left.descriptor, right.descriptor,
        None if bias is None else bias.descriptor, result.descriptor, _attributes(post_ops),
    )  # fmt: skip
    arguments = [(Argument.SOURCE, left), (Argument.WEIGHTS, right), (Argument.DESTINATION, result)]
    arguments += [] if bias is None else [(Argument.BIAS, bias)]
    return Primitive(described, [*arguments, *_post_arguments(post_ops)])


@_made_once
def reorder(source: Layout, result: Layout) -> Primitive:
    """A conversion of the source to the type and strides of the result; None where oneDNN has no fast primitive. Arrays
    of a call: source, result."""
    described = made(
        "reorder_primitive_desc_create", source.descriptor, engine(), result.descriptor, engine(), _attributes()
    )
    return Primitive(described, [(Argument.SOURCE, source), (Argument.DESTINATION, result)])


@_made_once
def total(layout: Layout, count: int) -> Primitive:
    """The sum of `count` arrays of one layout, computed in float32 and rounded once to their type; None where oneDNN
    has no fast primitive. Arrays of a call: the `count` sources, then the result."""
    layouts, scales = (Handle * count)(*[layout.descriptor] * count), (ctypes.c_float * count)(*[1.0] * count)
    described = made("sum_primitive_desc_create", engine(), layout.descriptor, count, scales, layouts, _attributes())
    sources = [(Argument.MULTIPLE_SOURCE + index, layout) for index in range(count)]
    return Primitive(described, [*sources, (Argument.DESTINATION, layout)])


def _eltwise(algorithm: Algorithm, alpha: float, source: Layout, result: Layout) -> Handle:
    return made(
        "eltwise_forward_primitive_desc_create", engine(), FORWARD_TRAINING, int(algorithm), source.descriptor,
        result.descriptor, ctypes.c_float(alpha), ctypes.c_float(0.0), _attributes(),
    )  # fmt: skip


@_made_once
def eltwise(algorithm: Algorithm, alpha: float, source: Layout, result: Layout) -> Primitive:
    """The function `algorithm` of each entry, with its parameter alpha; None where oneDNN has no fast primitive. Arrays
    of a call: source, result."""
    described = _eltwise(algorithm, alpha, source, result)
    return Primitive(described, [(Argument.SOURCE, source), (Argument.DESTINATION, result)])


@_made_once
def eltwise_gradient(algorithm: Algorithm, alpha: float, layout: Layout) -> Primitive:
    """The gradient dx = f'(x) dy of `eltwise`, all of one layout; None where oneDNN has no fast primitive. Arrays of a
    call: x, dy, dx."""
    forward = _eltwise(algorithm, alpha, layout, layout)
    described = made(
        "eltwise_backward_primitive_desc_create", engine(), int(algorithm), layout.descriptor, layout.descriptor,
        layout.descriptor, ctypes.c_float(alpha), ctypes.c_float(0.0), forward, _attributes(),
    )  # fmt: skip
    names = (Argument.SOURCE, Argument.DIFF_DESTINATION, Argument.DIFF_SOURCE)
    return Primitive(described, [(name, layout) for name in names], forward)


@_made_once
def binary(
    algorithm: Algorithm, left: Layout, right: Layout, result: Layout, post_ops: tuple[PostOp, ...] = ()
) -> Primitive:
    """left (op) right, which may be broadcast to left's shape, then `post_ops` on that in order; None where oneDNN has
    no fast primitive. Arrays of a call: left, right, result, then those of binary post operations."""
    described = made(
        "binary_primitive_desc_create", engine(), int(algorithm), left.descriptor, right.descriptor,
        result.descriptor, _attributes(post_ops),
    )  # fmt: skip
    arguments = [(Argument.SOURCE, left), (Argument.SOURCE_1, right), (Argument.DESTINATION, result)]
    return Primitive(described, [*arguments, *_post_arguments(post_ops)])


def _norm(rows: Layout, statistics: Layout, epsilon: float, flags: int) -> Handle:
    return made(
        "layer_normalization_forward_primitive_desc_create", engine(), FORWARD_TRAINING, rows.descriptor,
        rows.descriptor, statistics.descriptor, ctypes.c_float(epsilon), flags, _attributes(),
    )  # fmt: skip


def _norm_flags(centred: bool, shifted: bool) -> int:
    return USE_SCALE | (USE_SHIFT if shifted else 0) | (0 if centred else RMS_NORM)


def _statistics(statistics: Layout, centred: bool) -> list[tuple[Argument, Layout]]:
    names = (Argument.MEAN, Argument.VARIANCE) if centred else (Argument.VARIANCE,)
    return [(name, statistics) for name in names]


@_made_once
def norm(rows: Layout, vector: Layout, statistics: Layout, epsilon: float, centred: bool, shifted: bool) -> Primitive:
    """Layer norm, or RMS norm if not centred, over the last axis of x. Layouts: `rows` of x and y; `vector`, float32,
    of scale and shift; `statistics`, float32, of mean and variance (not centred: the mean of squares). None where
    oneDNN has no fast primitive. Arrays of a call, which writes y, mean and variance: x, y, mean if centred, variance,
    scale, shift if shifted."""
    described = _norm(rows, statistics, epsilon, _norm_flags(centred, shifted))
    arguments = [(Argument.SOURCE, rows), (Argument.DESTINATION, rows), *_statistics(statistics, centred)]
    arguments += [(Argument.SCALE, vector), *([(Argument.SHIFT, vector)] if shifted else [])]
    return Primitive(described, arguments)


@_made_once
def norm_gradient(
    rows: Layout, vector: Layout, statistics: Layout, epsilon: float, centred: bool, shifted: bool
) -> Primitive:
    """The backward of `norm`, with the same layouts; None where oneDNN has no fast primitive. If not centred, dx has a
    term too much: oneDNN 3.10 subtracts mean(dy scale) / deviation by rows. Arrays of a call: x, dy, dx, mean if
    centred, variance, scale, then the gradients of scale and, if shifted, of shift."""
    flags = _norm_flags(centred, shifted)
    forward = _norm(rows, statistics, epsilon, flags)
    described = made(
        "layer_normalization_backward_primitive_desc_create", engine(), BACKWARD, rows.descriptor, rows.descriptor,
        rows.descriptor, statistics.descriptor, ctypes.c_float(epsilon), flags, forward, _attributes(),
    )  # fmt: skip
    arguments = [(Argument.SOURCE, rows), (Argument.DIFF_DESTINATION, rows), (Argument.DIFF_SOURCE, rows)]
    arguments += [*_statistics(statistics, centred), (Argument.SCALE, vector), (Argument.DIFF_SCALE, vector)]
    arguments += [(Argument.DIFF_SHIFT, vector)] if shifted else []
    return Primitive(described, arguments, forward)
