"""The parts of a vocabulary-parallel cross entropy between which the caller's collectives go, on the host."""

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.autograd import Function
from pynative.kernels.host.arrays import array_of, as_float32, rows_of
from pynative.kernels.host.engine import ENGINE
from pynative.kernels.host.threads import row_blocks, run
from pynative.rounding import widened


def _columns(target: np.ndarray, first_id: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows whose target is among this rank's columns, those columns)."""
    local = target.reshape(-1) - first_id
    rows = np.flatnonzero((local >= 0) & (local < width))
    return rows, local[rows]


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = rows_of(logits)
    exponentials = np.empty(rows.shape, np.float32)
    maximum, total, target_logit = np.zeros((3, len(rows)), np.float32)

    def block(start: int, stop: int) -> None:
        span = slice(start, stop)
        ENGINE.softmax_exponentials(rows[span], exponentials[span], maximum[span], total[span])

    run(block, row_blocks(len(rows), rows.shape[1] * 4))
    present, columns = _columns(array_of(target), first_id, rows.shape[1])
    target_logit[present] = widened(rows[present, columns])
    statistics = (from_numpy(values.reshape(logits.shape[:-1])) for values in (maximum, total, target_logit))
    return from_numpy(exponentials.reshape(logits.shape)), *statistics


def cross_entropy_addends(
    own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor
) -> tuple[Tensor, Tensor]:
    factor = np.exp(array_of(own_maximum) - array_of(maximum))
    return from_numpy(factor), from_numpy(np.stack((array_of(own_sum) * factor, array_of(target_logit))))


def cross_entropy_loss(added: Tensor, maximum: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    total, target_logit = array_of(added)
    return from_numpy(np.log(total) + array_of(maximum) - target_logit), from_numpy(array_of(factor) / total)


def cross_entropy_gradient(
    exponentials: Tensor, probability_factor: Tensor, target: Tensor, first_id: int, dloss: Tensor
) -> Tensor:
    gradient = array_of(exponentials).reshape(-1, exponentials.shape[-1])
    row_weight = as_float32(dloss).reshape(-1)
    scale = (as_float32(probability_factor).reshape(-1) * row_weight)[:, None]

    def block(start: int, stop: int) -> None:
        gradient[start:stop] *= scale[start:stop]

    run(block, row_blocks(len(gradient), gradient.shape[1] * 4))
    present, columns = _columns(array_of(target), first_id, gradient.shape[1])
    gradient[present, columns] -= row_weight[present]
    return exponentials


class _MaskedMean(Function):
    @staticmethod
    def forward(ctx, losses, mask, count):
        values = as_float32(losses)
        weights = np.ones(values.shape, np.float32) if mask is None else array_of(mask).astype(np.float32)
        ctx.weights = weights / np.float32(max(np.sum(weights) if count is None else count, 1))
        return from_numpy(np.sum(values * ctx.weights, keepdims=True).reshape(()))

    @staticmethod
    def backward(ctx, dmean):
        return from_numpy(ctx.weights * as_float32(dmean)), None, None


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    return _MaskedMean.apply(losses, mask, count)
