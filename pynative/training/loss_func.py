"""Losses under the names that scripts import."""

from mindspore import nn

from parallel_core.config import TrainingConfig
from pynative.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from pynative.transformer.loss import LossWithMask

__all__ = ["LossWithMask", "VocabParallelCrossEntropy", "get_loss_func"]


def get_loss_func(training_config: TrainingConfig, return_instance: bool = True) -> nn.Cell | type[nn.Cell]:
    """The loss of each token, or with return_instance False its class: of a language model it is the only one, whatever
    the configuration. `LossWithMask` makes the mean of it."""
    return VocabParallelCrossEntropy() if return_instance else VocabParallelCrossEntropy
