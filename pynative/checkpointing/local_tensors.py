"""The tensors of a run that this rank writes to a checkpoint: each value is written by one rank, whichever ranks hold
it."""

from collections.abc import Callable
from dataclasses import replace

import mindspore
import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.buffers.stretch import Stretch
from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.writer import LocalTensor, is_state_written, is_written
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import Place
from pynative import parallel_state
from pynative.checkpointing.optimizer_state import optimizer_tensors
from pynative.checkpointing.state import RunState
from pynative.memory.arrays import array_of
from pynative.optimizer.flat_optimizer import FlatOptimizer
from pynative.parameter import ParameterMeta, name_parameters, place_of, settled, type_name


def local_tensors(state: RunState) -> dict[str, LocalTensor]:
    """The tensors of the run that this rank writes: parameters by name, optimizer states by "<state>.<name>". Values
    are read when they are written, so they must not change until then; those of a parameter without a record of initial
    values and without a gradient buffer (an untrained one of a user's own cell) are copied at once. Raises ValueError
    if the run's optimizer finds values that somebody assigned to an empty slot of ZeRO stage 3: they would be lost."""
    if state.step_cell.optimizer is not None:
        for buffer in state.step_cell.optimizer.buffers:
            buffer.check_slots()
    optimizer = saved_optimizer(state)
    return written_weights(state) | ({} if optimizer is None else written_state(optimizer))


def saved_optimizer(state: RunState) -> FlatOptimizer | None:
    """The run's optimizer; None if it has none or its states are not saved (--no-save-optim)."""
    return None if state.config.training_config.checkpoint.no_save_optim else state.step_cell.optimizer


def is_divided(state: RunState) -> bool:
    """Whether the run is set to divide weights, or states that are saved, among data-parallel replicas (ZeRO stage 3,
    or the distributed optimizer), even if there is one replica; the same on all ranks."""
    optimizer = saved_optimizer(state)
    is_sharded = optimizer is not None and optimizer.buffers.is_sharded
    return is_sharded or state.config.training_config.gradient.zero_stage == 3


def written_weights(state: RunState) -> dict[str, LocalTensor]:
    """The model's parameters that this rank writes, by global name: of one that ZeRO stage 3 cuts the part that this
    rank keeps, of others its shard, without padding at the ends of axes; either only if this rank is the first of those
    that hold the same."""
    found = ((p.meta.spec.name, _written_part(p)) for p in settled(name_parameters(state.model)))
    return {name: part for name, part in found if part is not None}


def _written_part(parameter: Parameter) -> LocalTensor | None:
    meta, coordinates = parameter.meta, parallel_state.get_coordinates()
    if not meta.is_cut:
        if not is_written(meta.spec, coordinates):
            return None
        read = (_values_of_now if _may_change_in_a_forward(meta) else _reading)(parameter)
        return _without_padding(place_of(parameter), type_name(parameter.dtype), read)
    if meta.kept is None or not is_state_written(meta.spec, coordinates, sharded=True):
        return None
    return _part(*meta.kept)


def written_state(optimizer: FlatOptimizer) -> dict[str, LocalTensor]:
    """The optimizer states that this rank writes, by "<state>.<name>": the parts that it owns, without padding at the
    ends of axes, if it is the first of the ranks that own the same (with states not shared out over replicas, the first
    replica)."""
    coordinates, sharded = parallel_state.get_coordinates(), optimizer.buffers.is_sharded
    found = (
        (name, _part(stretch, memory))
        for name, stretch, memory in optimizer_tensors(optimizer)
        if is_state_written(stretch.whole.spec, coordinates, sharded=sharded)
    )
    return {name: part for name, part in found if part is not None}


def _part(stretch: Stretch, memory: Tensor) -> LocalTensor | None:
    """A stretch of a parameter as a file has it; `memory` is the vector that holds it. None if it is only padding."""
    read = _reading(memory)
    return _without_padding(stretch.place, type_name(memory.dtype), lambda: stretch.to_array(read()))


def _without_padding(place: Place, dtype: str, read: Callable[[], Array]) -> LocalTensor | None:
    """The part `place` of an array as a file has it, without its padding; None if there is nothing but padding. read: a
    function that gives the part's values, padding included."""
    if not place.boxes:
        return None
    inside = tuple(map(slice, place.filled))
    return LocalTensor(replace(place, shape=place.filled), LazyTensor(place.filled, dtype, lambda: read()[inside]))


def _may_change_in_a_forward(meta: ParameterMeta) -> bool:
    """Whether a parameter may hold a running figure of a user's own cell: it is not trained, and no layer of ours made
    it."""
    return meta.initial is None and meta.main_grad is None


def _values_of_now(memory: Tensor) -> Callable[[], Array]:
    array = np.array(memory.asnumpy())
    return lambda: array


def _reading(memory: Tensor) -> Callable[[], Array]:
    """A function that returns a tensor's values: on a CPU an array over its own memory, which any thread can read;
    elsewhere a copy."""
    if mindspore.get_context("device_target") != "CPU":
        return lambda: np.asarray(memory.asnumpy())
    array = array_of(memory)
    return lambda: array
