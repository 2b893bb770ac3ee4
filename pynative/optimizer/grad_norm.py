"""The L2 norm of the whole gradient, each element counted once."""

import math

import numpy as np
from mindspore import Tensor

from pynative import kernels, parallel_state
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.model_sum import ModelSum


class GradientNorm:
    """Knows which gradients this rank counts.

    checks_all: those that it does not count, because another rank has the same, are looked at too, and all ranks of the
    job agree: if any rank has a gradient that is not finite, the norm is infinite on each.
    """

    def __init__(self, buffers: ParamAndGradBuffers, checks_all: bool = False) -> None:
        self._sum = ModelSum(of_owned=buffers.is_sharded)
        self._world = parallel_state.get_world_group() if checks_all else None
        self._runs = [
            (buffer.plan.replicas, buffer.gradients.span(*run))
            for buffer in buffers
            for run in self._sum.owned_runs(buffer)
        ]
        self._copies = [
            buffer.gradients.span(*run)
            for buffer in buffers
            for run in self._sum.owned_runs(buffer, counted=False)
            if checks_all
        ]

    def __call__(self, scale: float) -> float:
        """The norm of the gradients in the buffers times `scale`."""
        own: dict[str, float] = {}
        for replicas, run in self._runs:
            own[replicas] = own.get(replicas, 0.0) + kernels.squared_norm(run) * scale**2
        norm = math.sqrt(self._sum(own))
        if self._world is None:
            return norm
        squares = [*own.values(), *map(kernels.squared_norm, self._copies)]
        is_finite = Tensor(np.array([all(map(math.isfinite, squares))], np.float32))
        return norm if self._world.all_reduce(is_finite, op="min").asnumpy()[0] else math.inf


def clip_coefficient(norm: float, limit: float) -> float:
    """What gradients are multiplied with so that their norm is at most `limit`; 0 means no limit."""
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
