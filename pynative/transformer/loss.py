"""The loss of a micro-batch: per-token losses reduced to one number."""

import numpy as np
from mindspore import Tensor, nn

from pynative import kernels, parallel_state
from pynative.collectives.numbers import sum_over_group
from pynative.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region


class LossWithMask(nn.Cell):
    """sum(loss x mask) / max(sum(mask), 1): the mean loss of the tokens that count, of losses by `loss_func(logits,
    label)`.

    With context parallelism it is the whole sequences' mean, the same on each rank; a rank's gradient is that of its
    own losses, so that gradients of parameters, summed over the group, are the mean's. How micro-batches and replicas
    are averaged is not decided here (see `parallel_core.numerics.averaging`).
    """

    def __init__(self, loss_func: nn.Cell) -> None:
        super().__init__()
        self.loss_func = loss_func

    def construct(
        self, logits: Tensor, label: Tensor, loss_mask: Tensor | None = None, tokens: float | None = None
    ) -> Tensor:
        """logits [..., v/t], label and mask [...] (None: all count) -> a scalar, float32.

        tokens: the number of tokens of the whole sequences that count, where it is known; None: they are counted here,
        over the context-parallel group.
        """
        group, losses = parallel_state.get_context_parallel_group(), self.loss_func(logits, label)
        if group.size > 1 and tokens is None:
            own = losses.size if loss_mask is None else float(loss_mask.asnumpy().sum(dtype=np.float64))
            (tokens,) = sum_over_group([own], group)
        return reduce_from_tensor_model_parallel_region(kernels.masked_mean(losses, loss_mask, tokens), group)
