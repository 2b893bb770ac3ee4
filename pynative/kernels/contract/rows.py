# mypy: disable-error-code=empty-body
"""Contract of the operators that bring rows into another order: tokens to their experts and back."""

from mindspore import Tensor

from parallel_core.numerics.dtypes import Array


def gather_rows(x: Tensor, sources: Array, row: tuple[int, ...]) -> Tensor:
    """x [..., *row] -> [r, *row]: of its rows, counted over all leading axes, those of the numbers sources [r], int32;
    zeros where one is -1. Not recorded."""


def sum_rows(x: Tensor, places: Array, shape: tuple[int, ...]) -> Tensor:
    """x [r, ...] -> `shape`, of n rows: the sums of the rows at places [n, m], int32, -1 for none. Not recorded.

    The transpose of `gather_rows` where places are those of the copies (`parallel_core.moe.token_dispatch.Copies`).
    Sums are computed in float32 and rounded once.
    """
