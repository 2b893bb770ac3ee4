"""The parts of a vocabulary-parallel cross entropy around the caller's collectives, of MindSpore operators."""

import mindspore
from mindspore import Tensor, ops


def _local_target(target: Tensor, first_id: int, width: int) -> tuple[Tensor, Tensor]:
    """(column of each target, 0 where it is another rank's; whether it is this rank's as float32), both flat."""
    local = target.astype(mindspore.int32).reshape(-1) - first_id
    present = ops.logical_and(local >= 0, local < width)
    return local * present.astype(mindspore.int32), present.astype(mindspore.float32)


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    leading, width = logits.shape[:-1], logits.shape[-1]
    rows = ops.cast(logits, mindspore.float32).reshape(-1, width)
    column, present = _local_target(target, first_id, width)
    maximum = ops.amax(rows, -1, True)
    exponentials = ops.exp(rows - maximum)
    target_logit = ops.gather_d(rows, 1, column.reshape(-1, 1)).reshape(-1) * present
    statistics = (maximum, exponentials.sum(axis=-1), target_logit)
    return exponentials.reshape(logits.shape), *(values.reshape(leading) for values in statistics)


def cross_entropy_addends(
    own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor
) -> tuple[Tensor, Tensor]:
    factor = ops.exp(own_maximum - maximum)
    return factor, ops.stack((own_sum * factor, target_logit))


def cross_entropy_loss(added: Tensor, maximum: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    total, target_logit = added[0], added[1]
    return ops.log(total) + maximum - target_logit, factor / total


def cross_entropy_gradient(
    exponentials: Tensor, probability_factor: Tensor, target: Tensor, first_id: int, dloss: Tensor
) -> Tensor:
    width = exponentials.shape[-1]
    column, present = _local_target(target, first_id, width)
    position = ops.arange(column.shape[0]).astype(mindspore.int32) * width + column
    subtracted = dloss.reshape(-1) * present
    gradient = (exponentials * (probability_factor * dloss).expand_dims(-1)).reshape(-1)
    return ops.tensor_scatter_sub(gradient, position.expand_dims(-1), subtracted).reshape(exponentials.shape)


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    weights = ops.ones_like(losses) if mask is None else mask.astype(losses.dtype)
    divisor = weights.sum().clip(1.0, None) if count is None else max(count, 1.0)
    return (losses * weights).sum() / divisor
