"""An optimizer's state as named parts of global arrays: "<state>.<weight>", of what this rank owns."""

from collections.abc import Iterator

from mindspore import Tensor

from parallel_core.buffers import Stretch
from parallel_core.checkpoint.writer import LocalTensor, is_state_written
from pynative import parallel_state
from pynative.optimizer.flat_optimizer import FlatOptimizer


def optimizer_tensors(optimizer: FlatOptimizer) -> Iterator[tuple[str, Stretch, Tensor]]:
    """Name, part and memory, a vector, of every parameter's state."""
    for parameter, stretch, states in optimizer.states_of_parameters():
        for name, memory in states.items():
            yield f"{name}.{parameter.meta.spec.name}", stretch, memory


def written_state(optimizer: FlatOptimizer) -> dict[str, LocalTensor]:
    """What this rank writes: each part is written by one of the ranks that hold it."""
    coordinates, sharded = parallel_state.get_coordinates(), optimizer.buffers.is_sharded
    return {
        name: LocalTensor(stretch.place, stretch.to_array(memory.asnumpy()))
        for name, stretch, memory in optimizer_tensors(optimizer)
        if is_state_written(stretch.whole.spec, coordinates, sharded=sharded)
    }
