"""Figures of the whole model that people watch: the norm of its weights, and how many gradients are zero."""

import math

import numpy as np
from mindspore import Tensor

from parallel_core.sharding import is_counted
from pynative import kernels, parallel_state
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer, Piece


class ModelStatistics:
    """Sums over a model whose parameters are cut over tensor and pipeline parallelism, each counted once."""

    def __init__(self, buffer: ParamAndGradBuffer) -> None:
        coordinates = parallel_state.get_coordinates()
        self._pieces: list[Piece] = [p for p in buffer.pieces if is_counted(p.parameter.meta.spec, coordinates)]
        self._group = parallel_state.get_model_parallel_group()

    def _summed(self, own: float) -> float:
        return float(self._group.all_reduce(Tensor(np.array([own], np.float32))).asnumpy()[0])

    def parameter_norm(self) -> float:
        """The L2 norm of all weights."""
        return math.sqrt(self._summed(sum(kernels.squared_norm(piece.parameter) for piece in self._pieces)))

    def zero_gradients(self) -> int:
        """How many elements of the reduced gradient are exactly 0."""
        counts = (piece.size - np.count_nonzero(piece.parameter.main_grad.asnumpy()) for piece in self._pieces)
        return int(self._summed(float(sum(counts))))
