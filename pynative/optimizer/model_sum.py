"""Sums over a model whose parameters are cut and replicated over ranks: each parameter is counted once."""

from collections.abc import Mapping

import numpy as np
from mindspore import Tensor

from parallel_core.buffers import Entry
from parallel_core.sharding import MODEL_GROUPS, is_counted
from pynative import parallel_state
from pynative.collectives import Group


class ModelSum:
    """Which parameters this rank counts, and the sum of what all ranks counted."""

    def __init__(self) -> None:
        self._coordinates = parallel_state.get_coordinates()
        topology = parallel_state.get_topology()
        dense, expert = (topology.groups(kind) for kind in MODEL_GROUPS.values())
        self._groups: list[tuple[Group, tuple[str, ...]]]
        if np.array_equal(dense, expert):
            self._groups = [(parallel_state.get_model_parallel_group(), tuple(MODEL_GROUPS))]
        else:
            self._groups = [(parallel_state.get_group(group), (kind,)) for kind, group in MODEL_GROUPS.items()]

    def counts(self, entry: Entry) -> bool:
        """Whether this rank counts a parameter: the lowest rank in each group of copies does."""
        return is_counted(entry.spec, self._coordinates)

    def __call__(self, own: Mapping[str, float]) -> float:
        """The sum over one replica of the model of what its ranks counted, by the kind of the parameters' replicas."""
        return sum(_all_reduce(sum(own.get(kind, 0.0) for kind in kinds), group) for group, kinds in self._groups)


def _all_reduce(value: float, group: Group) -> float:
    return float(group.all_reduce(Tensor(np.array([value], np.float32))).asnumpy()[0])
