"""Figures of the whole model that people watch: the norm of its weights, and how many gradients are zero."""

import math
from collections.abc import Callable

import numpy as np
from mindspore import Parameter

from pynative import kernels
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.model_sum import ModelSum


class ModelStatistics:
    """Sums over a model, each parameter counted once."""

    def __init__(self, buffers: ParamAndGradBuffers) -> None:
        self._sum = ModelSum()
        self._counted = [(entry, parameter) for entry, parameter in buffers.entries if self._sum.counts(entry)]

    def _summed(self, measure: Callable[[Parameter], float]) -> float:
        own: dict[str, float] = {}
        for entry, parameter in self._counted:
            own[entry.spec.replicas] = own.get(entry.spec.replicas, 0.0) + measure(parameter)
        return self._sum(own)

    def parameter_norm(self) -> float:
        """The L2 norm of all weights."""
        return math.sqrt(self._summed(kernels.squared_norm))

    def zero_gradients(self) -> int:
        """How many elements of the reduced gradient are exactly 0."""
        return int(self._summed(lambda parameter: float(np.count_nonzero(parameter.main_grad.asnumpy() == 0))))
