"""Sums over a model whose parameters are cut and replicated over ranks: each element is counted once."""

from collections.abc import Mapping

import numpy as np
from mindspore import Tensor

from parallel_core.buffers.layout import Entry, Span, overlaps
from parallel_core.sharding import MODEL_GROUPS, SHARDS_OF_STATES, is_counted
from pynative import parallel_state
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer


class ModelSum:
    """Which parameters this rank counts, and the sum of what all ranks counted.

    of_owned: a rank counts what it owns of the buffers, where the replicas share their parameters out.
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
        """Whether this rank counts a parameter: the lowest rank in each group of copies does."""
        return is_counted(entry.spec, self._coordinates)

    def owned_runs(self, buffer: ParamAndGradBuffer, counted: bool = True) -> list[Span]:
        """What this rank owns of the parameters that it counts, or does not count."""
        return overlaps(buffer.plan.runs(lambda entry: self.counts(entry) is counted), buffer.owned)

    def __call__(self, own: Mapping[str, float]) -> float:
        """The sum over one replica of the model of what its ranks counted, by the kind of the parameters' replicas."""
        return sum(_summed(sum(own.get(kind, 0.0) for kind in kinds), groups) for kinds, groups in self._terms)


def _summed(value: float, kinds: list[str]) -> float:
    for kind in kinds:
        group = parallel_state.get_group(kind)
        value = float(group.all_reduce(Tensor(np.array([value], np.float32))).asnumpy()[0])
    return value
