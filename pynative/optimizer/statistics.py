"""Figures of the whole model that people watch: the norm of its weights, and how many gradients are zero."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.sharding import MODEL_KINDS, SHARDS_OF_STATES, is_counted
from pynative import kernels, parallel_state
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.model_sum import ModelSum


class ModelStatistics:
    """Sums over a model, each element counted once; the padding of the buffers is not counted."""

    def __init__(self, buffers: ParamAndGradBuffers, frozen: Sequence[Parameter] = ()) -> None:
        """frozen: parameters that lie in no buffer, because they are not trained."""
        self._frozen = frozen
        self._buffers, self._is_sharded = list(buffers), buffers.is_sharded
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
        return math.sqrt(self._summed("parameters", kernels.squared_norm) + self._frozen_square)

    @cached_property
    def _frozen_square(self) -> float:
        """Every replica has all of them; they do not change."""
        own: dict[str, float] = {}
        coordinates = parallel_state.get_coordinates()
        for parameter in self._frozen:
            spec = parameter.meta.spec
            if is_counted(spec, coordinates):
                own[spec.replicas] = own.get(spec.replicas, 0.0) + kernels.squared_norm(parameter)
        return ModelSum()(own)

    def gradient_norms(self, scale: float) -> dict[str, float]:
        """The L2 norm of each parameter's gradient times `scale`, by global name, of those of this stage.

        All ranks of the stage call this and get the same, but of experts those that they hold a part of.
        """
        norms: dict[str, float] = {}
        coordinates = parallel_state.get_coordinates()
        for buffer in self._buffers:
            kind = SHARDS_OF_STATES[buffer.plan.replicas]
            squares = np.zeros(len(buffer.plan.entries), np.float32)
            places = {entry.start: i for i, entry in enumerate(buffer.plan.entries)}
            for entry, run in buffer.plan.entries_in(buffer.owned):
                if is_counted(replace(entry.spec, shared_over=None), coordinates):
                    squares[places[entry.start]] += kernels.squared_norm(buffer.gradients.span(*run)) * scale**2
            total = Tensor(squares)
            for over in (*MODEL_KINDS[buffer.plan.replicas][:1], *([kind] if self._is_sharded else [])):
                total = parallel_state.get_group(over).all_reduce(total)
            names = (entry.spec.name for entry in buffer.plan.entries)
            norms |= dict(zip(names, np.sqrt(total.asnumpy()).tolist(), strict=True))
        return norms

    def zero_gradients(self) -> int:
        """How many elements of the reduced gradient are exactly 0."""
        return int(self._summed("gradients", lambda vector: float(np.count_nonzero(vector.asnumpy() == 0))))
