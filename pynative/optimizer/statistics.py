"""Figures of the whole model that people watch: the norm of its weights, and how many gradients are zero."""

import math
from collections.abc import Callable

import numpy as np
from mindspore import Tensor

from pynative import kernels
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.model_sum import ModelSum


class ModelStatistics:
    """Sums over a model, each element counted once; the padding of the buffers is not counted."""

    def __init__(self, buffers: ParamAndGradBuffers) -> None:
        self._sum = ModelSum(of_owned=buffers.is_sharded)
        self._counted = [
            (buffer, run)
            for buffer in buffers
            for entry, run in buffer.plan.entries_in(buffer.owned)
            if self._sum.counts(entry)
        ]

    def _summed(self, part: str, measure: Callable[[Tensor], float]) -> float:
        own: dict[str, float] = {}
        for buffer, run in self._counted:
            replicas, vector = buffer.plan.replicas, getattr(buffer, part).span(*run)
            own[replicas] = own.get(replicas, 0.0) + measure(vector)
        return self._sum(own)

    def parameter_norm(self) -> float:
        """The L2 norm of all weights."""
        return math.sqrt(self._summed("parameters", kernels.squared_norm))

    def zero_gradients(self) -> int:
        """How many elements of the reduced gradient are exactly 0."""
        return int(self._summed("gradients", lambda vector: float(np.count_nonzero(vector.asnumpy() == 0))))
