"""The L2 norm of the whole gradient, each parameter counted once."""

import math

from pynative import kernels
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.model_sum import ModelSum


class GradientNorm:
    """Knows which gradients this rank counts."""

    def __init__(self, buffers: ParamAndGradBuffers) -> None:
        self._sum = ModelSum()
        self._runs = [
            (buffer.plan.replicas, buffer.gradients.span(*run))
            for buffer in buffers
            for run in buffer.plan.runs(self._sum.counts)
        ]

    def __call__(self) -> float:
        """The norm of the gradients as they lie in the buffers, unscaled."""
        own: dict[str, float] = {}
        for replicas, run in self._runs:
            own[replicas] = own.get(replicas, 0.0) + kernels.squared_norm(run)
        return math.sqrt(self._sum(own))


def clip_coefficient(norm: float, limit: float) -> float:
    """What gradients are multiplied with so that their norm is at most `limit`; 0 means no limit."""
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
