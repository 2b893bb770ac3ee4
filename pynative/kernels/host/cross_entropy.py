"""The parts of a vocabulary-parallel cross entropy between which the caller's collectives go, on the host."""

import numpy as np
from mindspore import Tensor, from_numpy

from pynative.kernels.host.arrays import as_float32
from pynative.kernels.host.threads import row_blocks, run


def _columns(target: np.ndarray, first_id: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows whose target is among this rank's columns, those columns)."""
    local = target.reshape(-1) - first_id
    rows = np.flatnonzero((local >= 0) & (local < width))
    return rows, local[rows]


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = as_float32(logits).reshape(-1, logits.shape[-1])
    exponentials = np.empty_like(rows)
    maximum, total, target_logit = np.zeros((3, len(rows)), np.float32)

    def block(start: int, stop: int) -> None:
        part, result = rows[start:stop], exponentials[start:stop]
        np.max(part, axis=1, out=maximum[start:stop])
        np.subtract(part, maximum[start:stop, None], out=result)
        np.exp(result, out=result)
        np.sum(result, axis=1, out=total[start:stop])

    run(block, row_blocks(len(rows), rows.shape[1] * 4))
    present, columns = _columns(target.asnumpy(), first_id, rows.shape[1])
    target_logit[present] = rows[present, columns]
    statistics = (from_numpy(values.reshape(logits.shape[:-1])) for values in (maximum, total, target_logit))
    return from_numpy(exponentials.reshape(logits.shape)), *statistics


def cross_entropy_gradient(
    exponentials: Tensor, scale_per_row: Tensor, target: Tensor, first_id: int, target_weight_per_row: Tensor
) -> Tensor:
    gradient = exponentials.asnumpy().reshape(-1, exponentials.shape[-1])
    scale = as_float32(scale_per_row).reshape(-1, 1)

    def block(start: int, stop: int) -> None:
        gradient[start:stop] *= scale[start:stop]

    run(block, row_blocks(len(gradient), gradient.shape[1] * 4))
    present, columns = _columns(target.asnumpy(), first_id, gradient.shape[1])
    gradient[present, columns] -= as_float32(target_weight_per_row).reshape(-1)[present]
    return exponentials
