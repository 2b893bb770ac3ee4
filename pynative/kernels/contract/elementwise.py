# mypy: disable-error-code=empty-body
"""Contract of the operators of one tensor's elements."""

import mindspore
from mindspore import Tensor


def cast(x: Tensor, dtype: mindspore.Type) -> Tensor:
    """x in another floating-point type, rounded to nearest even; x itself where it has the type already."""


def scale(x: Tensor, factor: float) -> Tensor:
    """x * factor, in x's type: the product is rounded, the factor is not."""


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap), in x's type (Gemma 2, 2024)."""
