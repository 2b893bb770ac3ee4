"""Parts of a tensor as tensors of their own, of MindSpore operators."""

from mindspore import Tensor


def piece(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    size = x.shape[axis] // count
    return x.narrow(axis, index * size, size).contiguous()


def sequence_first(x: Tensor) -> Tensor:
    return x.swapaxes(0, 1).contiguous()
