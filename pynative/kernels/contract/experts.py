# mypy: disable-error-code=empty-body
"""Contract of the operators of experts: linears of several weights over rows that are sorted by weight.

R rows, all groups' together; `counts` says how many rows each group has, in order; a group may have none.
"""

from collections.abc import Sequence

from mindspore import Tensor


def grouped_linear_forward(x: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """x [R, i], weights [o, i] of the groups -> each row times its group's weight^T [R, o]. Not recorded."""


def grouped_linear_input_gradient(dy: Tensor, weights: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """dy [R, o], weights [o, i] of the groups -> [R, i]. Not recorded."""


def grouped_linear_weight_gradient(
    dy: Tensor, x: Tensor, counts: Sequence[int], out: Sequence[Tensor | None], accumulate: Sequence[bool]
) -> list[Tensor]:
    """dy [R, o], x [R, i] -> of each group dy^T x [o, i], zeros where it has no rows; written into the group's `out`
    where that is given; `accumulate`: added to it. Not recorded."""


def add_grouped_bias(
    y: Tensor, biases: Sequence[Tensor], counts: Sequence[int], factors: Tensor | None = None
) -> Tensor:
    """y [R, o] + each row's group's bias [o], times the row's factor; factors float32 [R], None: ones."""


def weighted_activation(x: Tensor, factors: Tensor, activation: str) -> Tensor:
    """activation(x) times each row's factor: x [R, f], gated [R, 2f] -> [R, f]; factors float32 [R].

    activation: one of `bias_activation`'s.
    """


def split_rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """x [R, ...] -> the rows of each group."""


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """The groups' rows -> [R, ...]."""


def sigmoid_gate(y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """y [..., h] times sigmoid(x weight^T) of its row: x [..., h], weight [1, h]."""
