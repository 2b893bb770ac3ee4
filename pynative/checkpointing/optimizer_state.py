"""An optimizer's state as named parts of global arrays: "<state>.<weight>", of what this rank owns."""

from collections.abc import Iterator

from mindspore import Tensor

from parallel_core.buffers import Stretch
from pynative.optimizer.flat_optimizer import FlatOptimizer


def optimizer_tensors(optimizer: FlatOptimizer) -> Iterator[tuple[str, Stretch, Tensor]]:
    """Name, part and memory, a vector, of every parameter's state."""
    for parameter, stretch, states in optimizer.states_of_parameters():
        for name, memory in states.items():
            yield f"{name}.{parameter.meta.spec.name}", stretch, memory
