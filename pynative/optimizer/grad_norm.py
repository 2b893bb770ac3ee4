"""The L2 norm of the whole gradient, each parameter counted once."""

import math

import numpy as np
from mindspore import Tensor

from parallel_core.sharding import Coordinates, is_counted
from pynative import kernels
from pynative.collectives import Group
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer


class GradientNorm:
    """Knows which gradients this rank counts."""

    def __init__(self, buffer: ParamAndGradBuffer, coordinates: Coordinates, model_parallel_group: Group) -> None:
        self._runs = buffer.runs([is_counted(piece.parameter.meta.spec, coordinates) for piece in buffer.pieces])
        self._group = model_parallel_group

    def __call__(self) -> float:
        """The norm of the gradients as they lie in the buffer, unscaled."""
        own = sum(kernels.squared_norm(run) for run in self._runs)
        total = self._group.all_reduce(Tensor(np.array([own], np.float32)))
        return math.sqrt(float(total.asnumpy()[0]))


def clip_coefficient(norm: float, limit: float) -> float:
    """What gradients are multiplied with so that their norm is at most `limit`; 0 means no limit."""
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
