"""Dropout, and where branches part and meet, of MindSpore operators; masks come from the host's generator."""

from mindspore import Tensor, from_numpy, ops

from pynative.kernels.dropout import Dropout, Key, Rows
from pynative.kernels.ops.elementwise import cast
from pynative.kernels.ops.linear import biased


def dropout(x: Tensor, rate: float, key: Key, rows: Rows | None = None) -> Tensor:
    if not rate:
        return x
    return cast(x * from_numpy(Dropout(rate, key, rows).mask(x.shape)), x.dtype)  # The mask is float32.


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    rate: float = 0.0,
    key: Key | None = None,
    rows: Rows | None = None,
) -> Tensor:
    branch = dropout(biased(x, bias), rate, key or (), rows)
    return branch if residual is None else cast(ops.add(residual, branch), residual.dtype)


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


def join_features(x: Tensor, y: Tensor) -> Tensor:
    return ops.cat((x, y), -1)
