"""Parts of a tensor as tensors of their own, of MindSpore operators."""

from collections.abc import Sequence

from mindspore import Tensor, ops


def chunk(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    size = x.shape[axis] // count
    return x.narrow(axis, index * size, size).contiguous()


def take_columns(x: Tensor, ranges: Sequence[range]) -> Tensor:
    return ops.concat([x.narrow(-1, run.start, len(run)) for run in ranges], -1)


def place_columns(x: Tensor, ranges: Sequence[range], width: int) -> Tensor:
    parts, stop, taken = [], 0, 0
    for run in ranges:
        parts += [_zero_columns(x, run.start - stop), x.narrow(-1, taken, len(run))]
        stop, taken = run.stop, taken + len(run)
    parts.append(_zero_columns(x, width - stop))
    return ops.concat([part for part in parts if part.shape[-1]], -1)


def _zero_columns(x: Tensor, width: int) -> Tensor:
    return ops.zeros((*x.shape[:-1], width), x.dtype)


def sequence_first(x: Tensor) -> Tensor:
    return x.swapaxes(0, 1).contiguous()
