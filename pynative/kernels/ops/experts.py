"""Products of groups of rows, each group with a weight of its own, experts' activations and biases, and shared experts'
gate, of MindSpore operators. R rows of all groups; i inputs, o outputs."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from mindspore import Tensor, ops

from pynative.kernels.contract.table import Operator
from pynative.kernels.ops.activation import bias_activation
from pynative.kernels.ops.elementwise import widened_on_cpu
from pynative.kernels.ops.linear import delivered, linear_forward, linear_input_gradient, linear_weight_gradient
from pynative.tape.autograd import Moved


def rows_by_group(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """The rows of x [R, ...] in groups, in order; counts: the number of rows of each, at least one group. For the
    inside of a `Function`: the operator with a backward is `split_rows`."""
    return ops.split(x, [int(count) for count in counts]) if len(counts) > 1 else (x,)


def joined(groups: Sequence[Tensor]) -> Tensor:
    """The rows of all groups, one group after the other, [R, ...]. For the inside of a `Function`: the operator with a
    backward is `join_rows`."""
    return ops.cat(list(groups)) if len(groups) > 1 else groups[0]


def split_rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    # On a CPU the tape's own backward of `split` fails where a part is empty.
    return Moved.apply(x, partial(rows_by_group, counts=counts), lambda *ds: joined(ds)) if len(counts) > 1 else (x,)


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    counts = [len(part) for part in parts]
    if len(counts) == 1:
        return parts[0]
    return Moved.apply(*parts, lambda *xs: joined(xs), partial(rows_by_group, counts=counts))


def _by_group(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]
) -> Tensor:
    return joined([product(rows, weight) for rows, weight in zip(rows_by_group(x, counts), weights, strict=True)])


@widened_on_cpu("x")
def grouped_linear_forward(x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    return _by_group(linear_forward, x, weights, counts)


@widened_on_cpu("dy")
def grouped_linear_input_gradient(dy: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    return _by_group(linear_input_gradient, dy, weights, counts)


@widened_on_cpu("dy")
def grouped_linear_weight_gradient(
    dy: Tensor, x: Tensor, counts: Sequence[int], out: Sequence[Tensor | None], accumulate: Sequence[bool]
) -> list[Tensor]:
    groups = zip(rows_by_group(dy, counts), rows_by_group(x, counts), out, accumulate, strict=True)
    return [_weight_gradient(*group) for group in groups]


def _weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None, accumulate: bool) -> Tensor:
    """dy^T x [o, i] of one group's rows, as in `linear_weight_gradient`; zeros without rows, for which a CPU's product
    gives whatever was in its memory."""
    if len(x):
        return linear_weight_gradient(dy, x, out, accumulate)
    return delivered(no_rows_gradient(dy, x), out, accumulate)


def no_rows_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Zeros [o, i] in the type of dy: the gradient of a weight that no row was multiplied with; dy [0, o], x [0, i]."""
    return ops.zeros((dy.shape[1], x.shape[1]), dy.dtype)


def _column(factors: Tensor, like: Tensor) -> Tensor:
    """The factors [R] as [R, 1] in the type of `like`, which they multiply."""
    return ops.cast(factors.expand_dims(-1), like.dtype)


@widened_on_cpu("y")
def add_grouped_bias(
    y: Tensor, biases: Sequence[Tensor], counts: Sequence[int], factors: Tensor | None = None
) -> Tensor:
    group_of_row = Tensor.from_numpy(np.repeat(np.arange(len(biases), dtype=np.int32), counts))
    # `stack` takes parameters or other tensors, not both, and of hot experts there are both. A product's gradient is a
    # tensor of its own; those of views are parts of one, into which the tape adds the next micro-batch's wrongly.
    table = ops.stack([bias * 1.0 for bias in biases])
    added = ops.gather(table, group_of_row, 0)
    return y + (added if factors is None else added * _column(factors, added))


@widened_on_cpu("x")
def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    return weighted(bias_activation, x, factors, activation)


def weighted(operator: Operator, x: Tensor, factors: Tensor, activation: str) -> Tensor:
    """`kernels.weighted_activation` with activations by `operator(x, None, activation)`, such as a fused one; for an
    empty x by the composed `bias_activation` of `ops`."""
    activated = (operator if x.size else bias_activation)(x, None, activation)
    return activated * _column(factors, activated)


@widened_on_cpu("y")
def sigmoid_gate(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return y * ops.sigmoid((x * weight[0]).sum(axis=-1, keepdims=True))
