"""Dropout, and the end of a residual branch, of MindSpore operators; masks come from the host's generator."""

from mindspore import Tensor, from_numpy

from pynative.kernels.dropout import Dropout, Key, Rows


def dropout(x: Tensor, rate: float, key: Key, rows: Rows | None) -> Tensor:
    return x * from_numpy(Dropout(rate, key, rows).mask(x.shape)).astype(x.dtype)


def bias_dropout_add(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, rate: float, key: Key, rows: Rows | None
) -> Tensor:
    branch = x if bias is None else x + bias
    branch = dropout(branch, rate, key, rows) if rate else branch
    return branch if residual is None else residual + branch


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x
