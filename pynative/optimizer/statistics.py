"""Figures of a whole model whose parameters are cut and replicated over ranks, each element counted once: the L2 norm
of the gradient, by which it is clipped, the L2 norm of the weights, and the number of zero gradients."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.buffers.layout import Entry, Span, overlaps
from parallel_core.buffers.stretch import Stretch
from parallel_core.sharding import MODEL_GROUPS, MODEL_KINDS, SHARDS_OF_STATES, is_counted
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.collectives.numbers import over_group, sum_over_group
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer, ParamAndGradBuffers


class ModelSum:
    """The choice of the parameters that this rank counts, and, by a call of the object, the sum of values over all
    ranks of a replica of the model.

    of_owned: the sum also goes over the replicas that share the states out, because each gives values only of what it
    owns of the buffers; False: over one replica alone, because every replica gives the same values.
    """

    def __init__(self, of_owned: bool = False) -> None:
        self._coordinates = parallel_state.get_coordinates()
        topology = parallel_state.get_topology()
        dense, expert = (topology.groups(kind) for kind in MODEL_GROUPS.values())
        same = np.array_equal(dense, expert)
        kinds = [tuple(MODEL_GROUPS)] if same else [(kind,) for kind in MODEL_GROUPS]
        self._terms = [
            (together, [*([SHARDS_OF_STATES[together[0]]] if of_owned else []), MODEL_GROUPS[together[0]]])
            for together in kinds
        ]

    def counts(self, entry: Entry) -> bool:
        """Whether this rank counts a parameter: of the ranks within one replica of the model that hold the same copy
        only the lowest does. The ranks of the replicas' group ("dp-cp" or "expert-dp") are not told apart here."""
        return is_counted(entry.spec, self._coordinates)

    def owned_runs(self, buffer: ParamAndGradBuffer, counted: bool = True) -> list[Span]:
        """The spans of a buffer that this rank owns, of the parameters that it counts, or with counted False of the
        others; padding between neighbours is in them."""
        return overlaps(buffer.plan.runs(lambda entry: self.counts(entry) is counted), buffer.owned)

    def __call__(self, counted: Iterable[tuple[str, float]]) -> float:
        """The sum of the values that ranks count, in float32, over one replica of the model and, if `of_owned`, over
        the replicas that share its states out. counted: (kind of the parameter's replicas, "dp-cp" or "expert-dp";
        value) of this rank's. All ranks call this and get the same."""
        return self._over_model(counted, over_group)

    def count(self, counted: Iterable[tuple[str, float]]) -> int:
        """The sum of whole numbers over the same ranks as by a call of the object, exact up to 2^36 in groups of up
        to 4096 ranks. counted: (kind of the parameter's replicas, "dp-cp" or "expert-dp"; number) of this rank's. All
        ranks call this and get the same."""
        return round(self._over_model(counted, lambda value, group: sum_over_group([value], group)[0]))

    def _over_model(self, counted: Iterable[tuple[str, float]], over: Callable[[float, Group], float]) -> float:
        own: dict[str, float] = defaultdict(float)
        for replicas, value in counted:
            own[replicas] += value
        total = 0.0
        for kinds, groups in self._terms:
            term = sum(own[kind] for kind in kinds)
            for group in groups:
                term = over(term, parallel_state.get_group(group))
            total += term
        return total


class GradientNorm:
    """The L2 norm of the gradients in the buffers, each element counted once.

    checks_all: gradients that this rank owns but does not count, because another rank has the same, are tested too, and
    all ranks of the job agree: if any rank owns a gradient that is not finite, the norm is infinite on each.
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
        """The model's norm of the gradients times `scale`; all ranks call this and get the same."""
        counted = [(replicas, kernels.squared_norm(run) * scale**2) for replicas, run in self._runs]
        norm = math.sqrt(self._sum(counted))
        if self._world is None:
            return norm
        squares = [*(square for _, square in counted), *map(kernels.squared_norm, self._copies)]
        return norm if over_group(all(map(math.isfinite, squares)), self._world, "min") else math.inf


def clip_coefficient(norm: float, limit: float) -> float:
    """The factor, at most 1, that brings gradients of this norm to a norm of at most `limit`; 1 for a limit of 0 or
    less, which means no clipping."""
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0


class ModelStatistics:
    """Figures of a model, each element counted once and the buffers' padding left out. All ranks call each method."""

    def __init__(self, buffers: ParamAndGradBuffers, frozen: Sequence[Parameter] = ()) -> None:
        """frozen: the parameters that lie in no buffer, because they are not trained."""
        self._frozen = frozen
        self._buffers, self._is_sharded = list(buffers), buffers.is_sharded
        self._sum = ModelSum(of_owned=buffers.is_sharded)
        self._counted = [
            (buffer, entry, run)
            for buffer in buffers
            for entry, run in buffer.plan.entries_in(buffer.owned)
            if self._sum.counts(entry)
        ]

    def _measured(self, part: str, measure: Callable[[Tensor], float]) -> Iterator[tuple[str, float]]:
        for buffer, _, run in self._counted:
            yield buffer.plan.replicas, measure(getattr(buffer, part).span(*run))

    def parameter_norm(self) -> float:
        """The L2 norm of all weights of the model, with the frozen ones that the object was given."""
        return math.sqrt(self._sum(self._measured("parameters", kernels.squared_norm)) + self._frozen_square)

    @cached_property
    def _frozen_square(self) -> float:
        """The sum of squares of all frozen parameters, which do not change; every replica has all of them."""
        coordinates = parallel_state.get_coordinates()
        counted = [p for p in self._frozen if is_counted(p.meta.spec, coordinates)]
        return ModelSum()((p.meta.spec.replicas, kernels.squared_norm(p)) for p in counted)

    def gradient_norms(self, scale: float) -> dict[str, float]:
        """The L2 norm of each trained parameter's gradient times `scale`, by global name, for the parameters of this
        stage.

        All ranks of the stage call this and get the same, except for experts: a rank gets those that it holds a part
        of.
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
        """The number of elements of the whole model's reduced gradient that are exactly 0, without those of padded rows
        (of the vocabulary, say)."""
        zeros = self._measured("gradients", lambda vector: np.count_nonzero(vector.asnumpy() == 0))
        return self._sum.count(zeros) - self._padding

    @cached_property
    def _padding(self) -> int:
        """The number of elements of the whole model in padded rows of its shards (of the vocabulary, say), whose
        gradients are 0."""
        found = ((buffer.plan.replicas, Stretch.of(entry, run).padding) for buffer, entry, run in self._counted)
        return self._sum.count(found)
