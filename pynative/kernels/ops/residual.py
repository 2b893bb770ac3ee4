"""Dropout, and the end of a residual branch, of MindSpore operators; masks come from the host's generator."""

from mindspore import Tensor, from_numpy

from pynative.kernels.dropout import Key, dropout_mask


def dropout(x: Tensor, rate: float, key: Key) -> Tensor:
    return x * from_numpy(dropout_mask(key, x.shape, rate)).astype(x.dtype)


def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, rate: float, key: Key) -> Tensor:
    branch = x if bias is None else x + bias
    return residual + (dropout(branch, rate, key) if rate else branch)


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x
