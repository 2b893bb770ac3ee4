"""Losses: per-token losses to one number per micro-batch."""

from mindspore import Tensor, nn

from pynative import parallel_state
from pynative.context_parallel.loss import masked_mean_over_group
from pynative.tensor_parallel.cross_entropy import VocabParallelCrossEntropy

__all__ = ["LossWithMask", "VocabParallelCrossEntropy"]


class LossWithMask(nn.Cell):
    """sum(loss x mask) / max(sum(mask), 1): the mean over the tokens that count, also of the sequences' other pieces.

    How micro-batches and replicas are averaged is not decided here (see `parallel_core.averaging`).
    """

    def __init__(self, loss_func: nn.Cell) -> None:
        super().__init__()
        self.loss_func = loss_func

    def construct(self, logits: Tensor, label: Tensor, loss_mask: Tensor | None = None) -> Tensor:
        """logits [..., v/t], label and mask [...] -> a scalar, float32."""
        group = parallel_state.get_context_parallel_group()
        return masked_mean_over_group(self.loss_func(logits, label), loss_mask, group)
