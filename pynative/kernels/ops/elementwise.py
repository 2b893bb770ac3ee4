"""Casts, shapes, scales and caps of tensors, of MindSpore operators.

`cast` and `shaped` give x itself where nothing changes: a cast or a reshape that does nothing takes time, too.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import mindspore
from mindspore import Tensor, ops

from parallel_core.numerics.dtypes import Array

FLOAT32 = mindspore.float32

TYPE_GIVERS: dict[Callable[..., Any], tuple[str, ...]] = {}
"""Operator without a kernel or a gradient for 16 bits on a CPU -> names of the arguments of which the first one given
has the type of its results (`widened.py`)."""

F = TypeVar("F", bound=Callable[..., Any])


def widened_on_cpu(*type_givers: str) -> Callable[[F], F]:
    """A decorator that puts an operator into `TYPE_GIVERS`, the table of operators that a CPU computes in float32 for
    16-bit arguments. type_givers: names of the operator's arguments; its results then have the type of the first of
    these that is not None (see `widened`)."""

    def mark(operator: F) -> F:
        TYPE_GIVERS[operator] = type_givers
        return operator

    return mark


def cast(x: Tensor, dtype: mindspore.Type) -> Tensor:
    return x if x.dtype == dtype else x.astype(dtype)


def shaped(x: Tensor, *shape: int) -> Tensor:
    """x in this shape, given with all sizes (no -1); x itself where it has it."""
    return x if x.shape == shape else x.reshape(shape)


def scale(x: Tensor, factor: float) -> Tensor:
    # In float32, because a number beside a tensor takes the tensor's type: 1e-9 beside float16 would be 0.
    return cast(cast(x, FLOAT32) * factor, x.dtype)


def scale_features(x: Tensor, factors: Array) -> Tensor:
    return cast(cast(x, FLOAT32) * Tensor.from_numpy(factors), x.dtype)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    # MindSpore's tanh on a CPU is off by 1e-4 where it saturates; its sigmoid is exact there.
    return cast(ops.sigmoid(cast(x, FLOAT32) * (2.0 / cap)) * (2.0 * cap) - cap, x.dtype)


def soft_cap_slope(x: Tensor, cap: float) -> Tensor:
    """The slope of cap tanh(x / cap) at x, float32: 1 - tanh(x / cap)^2 = 4 p (1 - p), p = sigmoid(2 x / cap)."""
    p = ops.sigmoid(cast(x, FLOAT32) * (2.0 / cap))
    return 4.0 * p * (1.0 - p)
