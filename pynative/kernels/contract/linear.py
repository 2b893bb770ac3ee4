# mypy: disable-error-code=empty-body
"""Contract of the operators of linear layers."""

from mindspore import Tensor


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., i], weight [o, i], bias [o] -> x weight^T + bias [..., o]. Not recorded."""


def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """dy [..., o], weight [o, i] -> [..., i]. Not recorded."""


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """dy [..., o], x [..., i] -> [o, i], written into `out` when given; `accumulate`: added to it. Not recorded."""


def bias_gradient(dy: Tensor, out: Tensor | None = None, accumulate: bool = False) -> Tensor:
    """dy [..., o] -> its sum over the leading axes [o], written into `out` when given; `accumulate`: added to it.

    Not recorded.
    """
