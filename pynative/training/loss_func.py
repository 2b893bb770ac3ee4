"""Losses under the names by which scripts import them."""

from mindspore import nn

from parallel_core.config import TrainingConfig
from pynative.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from pynative.transformer.loss import LossWithMask

__all__ = ["LossWithMask", "VocabParallelCrossEntropy", "get_loss_func"]


def get_loss_func(training_config: TrainingConfig, return_instance: bool = True) -> nn.Cell | type[nn.Cell]:
    """The cell of per-token losses, or with return_instance False its class: VocabParallelCrossEntropy, whatever the
    configuration. `LossWithMask` takes their mean."""
    return VocabParallelCrossEntropy() if return_instance else VocabParallelCrossEntropy
