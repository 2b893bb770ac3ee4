"""Whole arrays by Megatron's global names, loaded into a model and gathered from it."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple
from typing import TypeAlias

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core.buffers.stretch import Stretch
from parallel_core.checkpoint.writer import is_state_written, is_written, writers
from parallel_core.numerics.dtypes import FLOATS, Array
from parallel_core.sharding import Box, Place, ShardSpec
from pynative import parallel_state
from pynative.checkpointing.agreement import agree
from pynative.collectives import Group
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.memory.rounding import widened
from pynative.parameter import name_parameters, place_of, settled, type_name, whole_parameters, write_parameter

Shards: TypeAlias = "dict[str, tuple[Place, Array]]"
"""Shards by the parameter's global name: (the part of the global array, its values)."""


def load_weights(model: nn.Cell, arrays_by_global_name: Mapping[str, Array]) -> None:
    """Fill a model from whole arrays, the same in the same order on all ranks; each rank takes its shards of the
    parameters that it has. All ranks call this.

    If names or shapes differ on any rank, raises ValueError on all before anything is written. A rank's error lists the
    names that only the arrays have, those that only this rank's part of the model has, and shapes that differ there.
    """
    arrays = arrays_by_global_name
    parameters = settled(name_parameters(model))
    found = [_problem(parameter.meta.spec, arrays) for parameter in parameters]
    taken = {parameter.meta.spec.name for parameter in parameters}
    agree(list(arrays), taken, [problem for problem in found if problem], "the table of weights")
    for parameter in parameters:
        write_parameter(parameter, place_of(parameter).cut(arrays[parameter.meta.spec.name]))


def _problem(spec: ShardSpec, arrays: Mapping[str, Array]) -> str | None:
    if spec.name not in arrays:
        return f"{spec.name}: the model has it, the table does not"
    if arrays[spec.name].shape != spec.shape:
        return f"{spec.name}: {list(arrays[spec.name].shape)} in the table, {list(spec.shape)} in the model"
    return None


def _value(parameter: Parameter) -> Tensor:
    return parameter


def _array(tensor: Tensor) -> Array:
    """The values of a tensor as an array; those of a 16-bit type as float32, because numpy cannot compute in
    bfloat16."""
    array = tensor.asnumpy()
    return widened(array) if type_name(tensor.dtype) in FLOATS else array


def gather_weights(model: nn.Cell, of: Callable[[Parameter], Tensor] = _value) -> dict[str, Array] | None:
    """Every parameter (or the tensor of the same shape that `of` gives for it) as a whole array by global name, on rank
    0; None on the other ranks.

    Values of 16-bit floats come as float32. All ranks call this. A shard that several ranks hold comes from the first
    of them.
    """
    coordinates = parallel_state.get_coordinates()
    own: Shards = {}
    for parameter in whole_parameters(model):
        if is_written(parameter.meta.spec, coordinates):
            values = _array(of(parameter)).copy()  # The next fetch may reuse the memory.
            own[parameter.meta.spec.name] = place_of(parameter), values
    return gather_shards(own, writers(parallel_state.get_topology()))


def gather_gradients(buffers: ParamAndGradBuffers) -> dict[str, Array] | None:
    """The gradient of every parameter of the buffers, as they hold it after its reduction, as a whole array by global
    name, 16-bit values as float32, on rank 0; None on the other ranks. All ranks call this."""
    coordinates, sharded = parallel_state.get_coordinates(), buffers.is_sharded
    own = {}
    for buffer in buffers:
        for entry, run in buffer.plan.entries_in(buffer.owned):
            if is_state_written(entry.spec, coordinates, sharded=sharded):
                stretch = Stretch.of(entry, run)
                own[entry.spec.name] = stretch.place, stretch.to_array(_array(buffer.gradients.span(*run)))
    return gather_shards(own, writers(parallel_state.get_topology(), sharded=sharded))


def gather_shards(own: Shards, sources: Collection[int]) -> dict[str, Array] | None:
    """Whole arrays by name on rank 0, put together from the shards `own` of the ranks `sources`, rank 0 among them;
    elements that no shard has are undefined. None on the other ranks. All ranks call this."""
    world = parallel_state.get_world_group()
    if world.rank > 0:
        if world.rank in sources:
            _send_shards(own, world)
        return None
    whole: dict[str, Array] = {}
    _put(whole, own)
    for source in sources:
        if source > 0:
            _put(whole, _receive_shards(world, source))
    return whole


def _put(whole: dict[str, Array], shards: Shards) -> None:
    for name, (part, values) in shards.items():
        part.put(values, whole.setdefault(name, np.empty(part.spec.shape, values.dtype)))


def _send_shards(shards: Shards, group: Group) -> None:
    """Send shards to the group's rank 0, a table of names and shapes before the values."""
    contents = [
        (name, part.spec.shape, part.shape, [astuple(box) for box in part.boxes], str(values.dtype))
        for name, (part, values) in shards.items()
    ]
    _send_text(json.dumps(contents), group)
    for _, values in shards.values():
        group.send(Tensor(values), 0)


def _receive_shards(group: Group, source: int) -> Shards:
    shards = {}
    for name, whole, local, boxes, dtype in json.loads(_receive_text(group, source)):
        spec = ShardSpec(name=name, shape=tuple(whole))
        part = Place(spec, tuple(local), tuple(Box(*map(tuple, box)) for box in boxes))
        shards[name] = part, group.recv(part.shape, getattr(ms, dtype), source).asnumpy()
    return shards


def _send_text(text: str, group: Group) -> None:
    letters = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    group.send(Tensor(np.array([len(letters)], np.int32)), 0)
    group.send(Tensor(letters), 0)


def _receive_text(group: Group, source: int) -> str:
    length = int(group.recv((1,), ms.int32, source).asnumpy()[0])
    return str(group.recv((length,), ms.int32, source).asnumpy().astype(np.uint8).tobytes(), "utf-8")
