"""Losses under the names that scripts import."""

from pynative.tensor_parallel.cross_entropy import VocabParallelCrossEntropy
from pynative.transformer.loss import LossWithMask

__all__ = ["LossWithMask", "VocabParallelCrossEntropy"]
